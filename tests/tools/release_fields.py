"""Writes ``packages/devkit/tests/packaging/manifests/release_fields.json``: the fields of the kinds in `deploy/` per release of Kubernetes.

    python -m tests.tools.release_fields

The source is the official Python client, whose models are generated from the OpenAPI of each release: version 32 is Kubernetes 1.32.
For each field, the file contains the type and the first and the last release.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

RELEASES = range(32, 38)
OUT = Path(__file__).parents[2] / "packages/devkit/tests/packaging/manifests/release_fields.json"
ROOTS = (
    "V1Namespace", "V1ServiceAccount", "V1ConfigMap", "V1ClusterRole", "V1ClusterRoleBinding", "V1Role", "V1RoleBinding", "V1DaemonSet",
    "V1Deployment", "V1ValidatingAdmissionPolicy", "V1ValidatingAdmissionPolicyBinding", "V1beta1DeviceClass", "V1beta2DeviceClass",
    "V1DeviceClass", "V1ResourceQuota", "V1Service", "V1PodDisruptionBudget", "V1NetworkPolicy", "V1ValidatingWebhookConfiguration",
)  # fmt: skip
Fields = dict[str, str]  # by name in JSON


def models(wheel: Path) -> dict[str, Fields]:
    out: dict[str, Fields] = {}
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if re.fullmatch(r"kubernetes/client/models/\w+\.py", name):
                for node in ast.parse(files.read(name)).body:
                    if isinstance(node, ast.ClassDef) and (found := _tables(node)):
                        types, names = found
                        out[node.name] = {names[field]: kind for field, kind in types.items()}
    return out


def _tables(node: ast.ClassDef) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
    found = {}
    for statement in node.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict())
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict())
            ):
                found[name] = ast.literal_eval(statement.value)  # type: ignore[arg-type]
    return (found["openapi_types"], found["attribute_map"]) if "openapi_types" in found else None


def main() -> int:
    fields: dict[str, dict[str, list[str | int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for release in RELEASES:
            wanted = ["download", "-q", "--no-deps", "-d", folder, f"kubernetes=={release}.*"]
            subprocess.run([sys.executable, "-m", "pip", *wanted], check=True)
            (wheel,) = Path(folder).glob(f"kubernetes-{release}.*.whl")
            known = models(wheel)
            todo, seen = [r for r in ROOTS if r in known], set[str]()
            while todo:
                model = todo.pop()
                if model in seen:
                    continue
                seen.add(model)
                for name, kind in known[model].items():
                    entry = fields.setdefault(model, {}).setdefault(name, [kind, release, release])
                    entry[2] = release
                    todo += [m for m in re.findall(r"\w+", kind) if m in known]
    lines = [f'"{model}": {json.dumps(fields[model], sort_keys=True)}' for model in sorted(fields)]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
