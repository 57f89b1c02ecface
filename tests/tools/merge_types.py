"""Makes ``local/apiserver/merge_types.json`` from a server's OpenAPI v3 schemas: what server-side apply must know of each type.

    python -m tests.tools.merge_types kubernetes-1.36.json

Of a type it keeps the kind of scalar, the fields, what kind of list or map it is, and the keys of list maps with their defaults;
:mod:`dra_kubeletplugin.local.apiserver.types` reads it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

JSON = dict[str, Any]
GROUPS = ("io.k8s.api.core.v1.", "io.k8s.api.resource.", "io.k8s.api.coordination.v1.")
KINDS = (
    "Namespace", "Node", "Pod", "Event", "ServiceAccount", "ConfigMap", "Secret", "Service", "ResourceQuota",
    "ResourceSlice", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "DeviceTaintRule", "Lease",
)  # fmt: skip
OUT = Path(__file__).parents[2] / "src/dra_kubeletplugin/local/apiserver/merge_types.json"
_SCALARS = {"string": "string", "integer": "numeric", "number": "numeric", "boolean": "boolean"}
_ANY = {"io.k8s.apimachinery.pkg.runtime.RawExtension", "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"}


class Types:
    """The types that some kinds need, by a short name."""

    def __init__(self, schemas: JSON) -> None:
        self.schemas = schemas
        self.found: JSON = {}

    def named(self, name: str) -> str:
        short = name.removeprefix("io.k8s.").replace("apimachinery.pkg.", "")
        if short not in self.found:
            self.found[short] = {}  # before its fields: types refer to themselves
            self.found[short] = "any" if name in _ANY else self.of(self.schemas[name])
        return short

    def of(self, schema: JSON) -> Any:
        if all_of := schema.get("allOf"):
            return self.of({**all_of[0], **{k: v for k, v in schema.items() if k != "allOf"}})
        if reference := schema.get("$ref"):
            return {"type": self.named(reference.rpartition("/")[2])}
        if "oneOf" in schema:
            return "untyped"
        if schema.get("type") == "array":
            return self._list(schema)
        if "properties" in schema:
            out: JSON = {"fields": {k: self.of(v) for k, v in sorted(schema["properties"].items())}}
        elif "additionalProperties" in schema:
            out = {"map": self.of(schema["additionalProperties"])}
        else:
            return _SCALARS.get(schema.get("type", ""), "any")
        return out | ({"atomic": True} if schema.get("x-kubernetes-map-type") == "atomic" else {})

    def _list(self, schema: JSON) -> JSON:
        out: JSON = {"list": self.of(schema["items"])}
        match schema.get("x-kubernetes-list-type", "atomic"):
            case "map":
                out["keys"] = schema["x-kubernetes-list-map-keys"]
                item = schema["items"].get("allOf", [schema["items"]])[0]["$ref"].rpartition("/")[2]
                fields = self.schemas[item]["properties"]
                required = {k: fields[k]["default"] for k in out["keys"] if fields[k].get("default")}
                if required:
                    out["defaults"] = required
            case "set":
                out["set"] = True
        return out


def main(source: str) -> None:
    schemas = json.loads(Path(source).read_text())["schemas"]
    types = Types(schemas)
    kinds = {}
    for name, schema in sorted(schemas.items()):
        if name.startswith(GROUPS) and name.rpartition(".")[2] in KINDS:
            for gvk in schema.get("x-kubernetes-group-version-kind", ()):
                kinds[f"{gvk['group']}/{gvk['version']}/{gvk['kind']}"] = types.named(name)
    content = json.dumps({"kinds": kinds, "types": types.found}, separators=(",", ":"), sort_keys=True)
    OUT.write_text(content.replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
