"""Tests ``dra validate`` and ``dra schema``, which check files without a cluster."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver import manifest_validation
from dra_devkit.schemas import shapes
from dra_devkit.yaml import stream
from dra_devkit.yaml.manifests import ManifestError
from dra_kubeletplugin.base.json_types import JSON
from dra_tools.files import from_files
from packages.devkit.tests.command_runner import Dra
from tests.helpers.manifests import CLAIM
from tests.tools.tree import ROOT

GPU = str(ROOT / "drivers/gpu_example")
BAD = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: Bad_Name}
spec:
  devices:
    requests: [{name: r, exactly: {deviceClassName: g, cnt: 2, selectors: [{cel: {expression: "device.foo == 1"}}]}}]
    config:
    - opaque:
        driver: gpu.example.com
        parameters: {apiVersion: gpu.resource.example.com/v1alpha1, kind: GpuConfig, sharin: 1}
    - opaque: {driver: gpu.exmple.com, parameters: {}}
---
apiVersion: foo.example.com/v1
kind: Thing
metadata: {name: t}
"""


def test_every_example_is_valid(dra: Dra) -> None:
    files = sorted(map(str, ROOT.glob("examples/*/manifest.yaml")))
    output = dra("validate", "--driver", GPU, *files).out.splitlines()
    assert len(output) >= len(files)
    assert all(line.startswith("ok ") for line in output)


def test_faults_found_by_api_server_cel_and_driver_are_reported_together(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    claim, thing = json.loads(dra("validate", tmp_path / "bad.yaml", "--driver", GPU, "-o", "json", code=1).out)[
        "objects"
    ]
    messages = "\n".join(f["message"] for f in claim["faults"])
    for part in (
        "spec.devices.requests[0].exactly.cnt: unknown field, did you mean 'count'?",
        "metadata.name: Invalid value",
        "undefined field 'foo'",
        "spec.devices.config[0].opaque: parameters: unknown field 'sharin', did you mean 'sharing'?",
    ):
        assert part in messages
    assert "did you mean 'gpu.example.com'?" in claim["warnings"][0]["message"]
    assert (thing["faults"], len(thing["warnings"])) == ([], 1)


def test_parameters_without_their_driver_are_reported_as_not_validated(dra: Dra) -> None:
    manifest = str(ROOT / "examples/07-opaque-configuration/manifest.yaml")
    output = dra("validate", manifest).out
    assert "parameters of 'gpu.example.com' are not validated: add that driver with --driver" in output


@pytest.mark.parametrize("text", ["", "---\n---\n# nothing\n"])
def test_a_file_without_objects_is_reported(tmp_path: Path, text: str, dra: Dra) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    assert "no object in " in dra("validate", tmp_path / "odd.yaml", code=3).err


def test_a_folder_without_files_is_reported(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "claim.yaml").write_text(CLAIM)
    for files in (["empty"], ["empty", "claim.yaml"]):
        printed = dra("validate", *(str(tmp_path / f) for f in files), code=3)
        assert "empty: no file in it ends in .yaml, .yml, .json" in printed.err
        assert ("ok ResourceClaim c" in printed.out) == ("claim.yaml" in files)


# --- texts that cannot be read ------------------------------------------------------------------------

UNREADABLE: dict[str, tuple[str | bytes, str]] = {
    "unclosed list": ("a: [", "2:1: not valid YAML: a value is missing, or a '[' or '{' is not closed"),
    "tab": ("a:\n\tb: 1\n", "2:1: not valid YAML: a tab: YAML is indented with spaces"),
    "colon": (
        "a: 1\nb: c: d\n",
        "2:5: not valid YAML: a ':' in a place where none is allowed: check the indentation, or put the text in quotes",
    ),
    "indentation": (
        "a:\n  b: 1\n c: 2\n",
        "3:2: not valid YAML: this line is neither a key nor the end of the mapping above: check the indentation",
    ),
    "no colon": ("a: 1\nb\nc: 2\n", "3:1: not valid YAML: a key without ':' after it"),
    "item": ("a: - 1\n", "1:4: not valid YAML: a list item in a place where none is allowed"),
    "quote": ("a: 'x\n", ":2:1: not valid YAML: a quote that is not closed"),
    "alias": ("a: *.x\n", "not valid YAML: "),
    "template": ("a: {{ .Values.a }}\n", "a Helm template with {{ }} must be rendered first"),
    "no UTF-8": (b"a: 1\nb: \xff\n", ":2: byte 0xff is not UTF-8: save the file as UTF-8"),
    "half of UTF-16": ("a: 1".encode("utf-16")[:-1], ":1: byte 0x31 is not UTF-16: save the file as UTF-8"),
    "UTF-16 without a mark": ("a: 1".encode("utf-16-le"), ":1:2: the character U+0000 is not allowed in YAML"),
    "control character": (
        "a: \u00e9\u00e9\u00e9\u00e9\u00e9\nb: \x01\n",
        ":2:4: the character U+0001 is not allowed in YAML",
    ),
    "number": ("a: !!int b\n", "1:4: not valid YAML: the text 'b' is not of type int"),
    "endless": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: &s {containers: [*s]}\n",
        ":4:7: not valid YAML: an alias is inside its own anchor",
    ),
    "deep": ("[" * 100_000 + "]" * 100_000, "not valid YAML: nested too deeply"),
    "deep in blocks": ("\n".join(" " * i + "a:" for i in range(1000)), ":201:201: not valid YAML: nested too deeply"),
    "deep in one line": ("- " * 100_000, "not valid YAML: nested too deeply"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_invalid_yaml_is_reported_with_file_line_and_column(case: str, tmp_path: Path, dra: Dra) -> None:
    text, expected = UNREADABLE[case]
    path = tmp_path / "odd.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "good.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}")
    out, err, _ = dra("validate", path, tmp_path / "good.yaml", code=2)
    assert err.startswith(f"wrong {path}") and expected in err
    assert "ok ConfigMap c" in out  # the other file is still validated
    assert err.count("\n") == 1


def test_other_commands_report_deeply_nested_yaml_as_an_error(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("- " * 100_000)
    with pytest.raises(ManifestError, match=r"deep\.yaml:1:401: not valid YAML: nested too deeply"):
        from_files([tmp_path / "deep.yaml"])


def test_a_missing_file_is_reported(tmp_path: Path, dra: Dra) -> None:
    assert (
        f"wrong {tmp_path}/none.yaml: No such file or directory" in dra("validate", tmp_path / "none.yaml", code=2).err
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("1" + 40 * "0", 1e40), (str(2**64 - 1), 2**64 - 1), (str(2**64), 2**64), (str(-(2**63)), -(2**63))],
)
def test_integers_are_read_from_yaml_and_json_as_the_api_server_stores_them(
    text: str, value: float, tmp_path: Path
) -> None:
    """`dra validate` accepted 10^40 for an `int` in a JSON file; the plugin and the webhook got a float and rejected it."""
    for suffix in ("yaml", "json"):
        path = tmp_path / f"number.{suffix}"
        path.write_text(f'{{"depth": {text}}}')
        faults: list[str] = []
        [document] = stream.read(path, faults)
        assert (faults, document.value) == ([], {"depth": value})
        assert type(document.value["depth"]) is type(value)


def test_folders_json_lists_and_standard_input_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dra: Dra
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.yml").write_text(
        "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n"
        "- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: b}\n  dta: {}\n"
    )
    (tmp_path / "in/b.json").write_text('{\n\t"apiVersion": "v1",\n\t"kind": "Pd", "metadata": {"name": "c"}\n}')
    (tmp_path / "in/notes.txt").write_text("not valid YAML: [")
    (tmp_path / "in/kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"kind: Pod\napiVersion: v1\nmetdata: {}\n")))
    output = dra("validate", tmp_path / "in", "-", code=1).out.splitlines()
    assert output[0] == f"ok ConfigMap a ({tmp_path}/in/a.yml:4)"
    assert output[1] == f"wrong {tmp_path}/in/a.yml:8: ConfigMap b: dta: unknown field, did you mean 'data'?"
    assert output[2] == f"wrong {tmp_path}/in/b.json:3: Pd c: kind: v1 has no 'Pd', did you mean 'Pod'?"
    assert "kustomization.yaml:1: Kustomization: not validated: it is a file of kustomize" in output[3]
    assert output[4] == "wrong standard input:3: Pod: metdata: unknown field, did you mean 'metadata'?"


def test_files_of_a_package_that_are_not_objects_are_ignored_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dra: Dra
) -> None:
    monkeypatch.chdir(tmp_path)
    dra("new", "acme-npu", "--kind", "sdk")
    output = dra("validate", "acme-npu").out.splitlines()
    assert "ok DeviceClass acme-npu.example.com (acme-npu/deploy/deviceclass.yaml:2)" in output
    assert (
        "values.yaml:2: apiVersion: missing"
        in dra("validate", "acme-npu/deploy", "acme-npu/deploy/values.yaml", code=1).out
    )


def test_files_that_dra_deploy_rendered_get_no_warning_but_files_of_the_user_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dra: Dra
) -> None:
    monkeypatch.chdir(tmp_path)
    dra("new", "acme-npu", "--kind", "sdk")
    assert (
        dra("validate", "acme-npu/deploy").out
        == "ok DeviceClass acme-npu.example.com (acme-npu/deploy/deviceclass.yaml:2)\n"
    )
    patches = tmp_path / "acme-npu/deploy/kustomize/mine"
    patches.mkdir()
    (patches / "kustomization.yaml").write_text("kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n")
    (patches / "patch.yaml").write_text("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: acme-npu}\n")
    (tmp_path / "acme-npu/deploy/other.yaml").write_text("colour: red\n")
    warnings = [line for line in dra("validate", "acme-npu/deploy").out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2
    assert warnings[0].endswith("it has neither apiVersion nor kind, so it may be values of Helm")
    assert warnings[1].endswith("and 1 other: validate the output of `kubectl kustomize acme-npu/deploy`")


# --- invalid objects ----------------------------------------------------------------------------------

CLASS = """apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec:
  selectors:
  - cel:
      expression: device.driver == "gpu.example.com"
"""
TEMPLATE = """apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec:
  spec:
    devices:
      config: [{requests: [request/first], opaque: {driver: gpu.example.com, parameters: {}}}]
      requests: [{name: request, firstAvailable: [{name: first, deviceClassName: gpu.example.com}]}]
"""
POD = """apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}, volumeMounts: [{name: tmp, mountPath: /x}]}]
      resourceClaims: [{name: gpu, resourceClaimName: c}]
      volumes: [{name: tmp, emptyDir: {}}]
"""
DRIVER = """from dra_kubeletplugin import Device, Driver


class Gpu(Driver):
    name = "gpu.example.com"

    async def devices(self):
        return [Device("gpu")]

    async def prepare(self, claim):
        return [d.prepared() for d in claim.devices]
"""
MISTAKES: dict[str, tuple[str, str, str, str]] = {  # a text, the part to replace, its replacement, and the expected message
    "field": (CLAIM, "deviceClassName", "deviceclassName", ":9: ResourceClaim c: spec.devices.requests[0].exactly.deviceclassName: "
              "unknown field, did you mean 'deviceClassName'?"),
    "field of v1beta1": (
        CLAIM,
        "exactly:\n        deviceClassName: gpu.example.com\n        count: 1",
        "deviceClassName: gpu.example.com",
        ":8: ResourceClaim c: spec.devices.requests[0].deviceClassName: unknown field: it belongs in 'exactly'",
    ),
    "field of an outer object": (CLAIM, "        count: 1", "        requests: []", ":10: ResourceClaim c: spec.devices.requests[0].exactly.requests: "
                          "unknown field: it belongs in 'spec.devices', an outer object: check the indentation"),
    "no similar field": (CLAIM, "count: 1", "zzzzzz: 1", "exactly.zzzzzz: unknown field: the known fields are adminAccess, allocationMode"),
    "a later release": (CLAIM, "count: 1", "derivedAttributes: []", "derivedAttributes: unknown field in Kubernetes 1.36: Kubernetes 1.37 adds it"),
    "number in quotes": (CLAIM, "count: 1", "count: '1'", ":10: ResourceClaim c: spec.devices.requests[0].exactly.count: the text '1' in "
                         "place of a whole number: write it without quotes"),
    "text without quotes": (CLAIM, "{name: c}", "{name: c, labels: {a: on}}", ":3: ResourceClaim c: metadata.labels.a: true in place of text: "
                            "write it in quotes"),
    "object for a list": (CLAIM, "- name: r", "  name: r", ":6: ResourceClaim c: spec.devices.requests: an object in place of a list: begin each"
                          " item with '- '"),
    "list for an object": (CLAIM, "exactly:", "exactly: []\n      x:", "exactly: a list in place of an object"),
    "number too large": (CLAIM, "count: 1", "count: 100000000000000000000", "100000000000000000000 is out of the range of the field"),
    "quantity": (CLAIM, "count: 1", "capacity: {requests: {memory: 80 GB}}", "requests.memory: '80 GB' is not a quantity such as 2, 500m or 80Gi"),
    "choice": (CLAIM, "count: 1", "allocationMode: Al", 'supported values: "All", "ExactCount", did you mean \'All\'?'),
    "key twice": (CLAIM, "        count: 1", "        count: 1\n        count: 2", ":11: ResourceClaim c: the key 'count' was already used in "
                  "line 10: one of the values is lost"),
    "version": (CLAIM, "k8s.io/v1", "k8s.io/v1beta3", ":1: ResourceClaim c: apiVersion: 'resource.k8s.io/v1beta3' has no ResourceClaim: use "
                "resource.k8s.io/v1, "),
    "kind": (CLAIM, "ResourceClaim", "ResourceClaims", ":2: ResourceClaims c: kind: resource.k8s.io/v1 has no 'ResourceClaims', did you mean "
             "'ResourceClaim'?"),
    "group": (CLAIM, "resource.k8s.io/v1", "resources.k8s.io/v1", "apiVersion: no ResourceClaim in 'resources.k8s.io/v1': use resource.k8s.io/v1"),
    "no group": (CLAIM, "resource.k8s.io/v1", "v1", "apiVersion: ResourceClaim is not in 'v1': use resource.k8s.io/v1"),
    "no kind": (CLAIM, "kind: ", "# ", ":1: c: kind: missing"),
    "misspelled kind field": (CLAIM, "kind: ", "kinf: ", ":2: c: kinf: unknown field, did you mean 'kind'?"),
    "no name": (CLAIM, "{name: c}", "{nme: c}", ":3: ResourceClaim: metadata.nme: unknown field, did you mean 'name'?"),
    "rule": (CLAIM, "name: r", "name: R", ":7: ResourceClaim c: spec.devices.requests[0].name: Invalid value"),
    "missing": (CLAIM, "deviceClassName: gpu.example.com", "adminAccess: false", "exactly.deviceClassName: Required value"),
    "request of a constraint": (CLAIM, "    requests:", "    constraints: [{requests: [q, rr], matchAttribute: a.b/c}]\n    requests:",
                                "separated by '/', did you mean 'r'?"),
    "request of a configuration": (TEMPLATE, "[request/first]", "[requets/first]", "separated by '/', did you mean 'request/first'?"),
    "claim of a container": (POD, "{name: gpu}", "{name: gpuu}", 'claims[0]: Not found: "gpuu", did you mean \'gpu\'?'),
    "volume of a container": (POD, "{name: tmp,", "{name: tpm,", 'Not found: "tpm", did you mean \'tmp\'?'),
    "CEL field": (CLASS, "device.driver", "device.drivr", ":7: DeviceClass gpu.example.com: spec.selectors[0].cel.expression: Invalid value"),
    "CEL field is named": (CLASS, "device.driver", "device.drivr", "undefined field 'drivr', did you mean 'driver'?"),
    "CEL variable": (CLASS, "device.driver", "devcie.driver", "undeclared reference to 'devcie', did you mean 'device'?"),
    "CEL of a feature gate": (CLASS, 'device.driver == "gpu.example.com"', 'device.driver.includes("a")', "it needs the feature gate "
                              "DRAListTypeAttributes"),
    "CEL comparison": (CLASS, "==", "=", "compare with '=='"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_suggestion(case: str, tmp_path: Path, dra: Dra) -> None:
    text, right, wrong, expected = MISTAKES[case]
    assert right in text
    path = tmp_path / "m.yaml"
    path.write_text(text.replace(right, wrong, 1))
    assert expected in dra("validate", path, code=1).out


def test_misspelled_names_of_other_objects_cause_warnings(tmp_path: Path, dra: Dra) -> None:
    published = """apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.example.com
  nodeName: node
  pool: {name: node, generation: 1, resourceSliceCount: 1}
  devices:
  - name: d
    attributes: {model: {string: a}, other.example.com/numa: {int: 1}}
    capacity: {memory: {value: 80Gi}}
"""
    used = CLASS.replace(
        'device.driver == "gpu.example.com"',
        """device.attributes["gpu.example.com"].modle == "a" && device.attributes["gpu.exmple.com"].model == "a" &&
        device.attributes["gpu.example.com"].memory == 1 && device.attributes["other.example.com"].numa == 1 &&
        device.attributes["third.org"].x == 1 && device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("1"))""",
    )
    pod = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: i, resources: {claims: [{name: x}]}}]
  resourceClaims: [{name: x, resourceClaimTemplateName: temlate}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: template}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.example.con}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: unrelated}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: of-the-cluster}}]}}
"""
    (tmp_path / "a.yaml").write_text("---\n".join((published, used, pod)))
    warnings = [
        line.partition("a.yaml:")[2]
        for line in dra("validate", tmp_path / "a.yaml").out.splitlines()
        if line.startswith("warning")
    ]
    at = "DeviceClass gpu.example.com: spec.selectors[0].cel.expression: "
    assert warnings == [
        f"19: {at}no device has the attribute 'modle' of gpu.example.com, did you mean 'model'?",
        f"19: {at}no device has attributes of 'gpu.exmple.com', did you mean 'gpu.example.com'?",
        f"19: {at}'memory' of gpu.example.com is in device.capacity, not in device.attributes",
        "28: Pod p: spec.resourceClaims[0].resourceClaimTemplateName: no ResourceClaimTemplate 'temlate' in these files, did you mean "
        "'template'?",
        "33: ResourceClaimTemplate template: spec.spec.devices.requests[0].exactly.deviceClassName: no DeviceClass 'gpu.example.con' in "
        "these files, did you mean 'gpu.example.com'?",
    ]


def test_a_device_class_in_the_folder_of_the_driver_is_known(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "c.yaml").write_text(CLAIM.replace("gpu.example.com", "gpu.exmple.com"))
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    (tmp_path / "deploy").mkdir()
    arguments = ["validate", str(tmp_path / "c.yaml"), "--driver", str(driver)]
    assert dra(*arguments).out.startswith("ok ")  # no class is known
    class_file = tmp_path / "deploy/deviceclass.yaml"
    class_file.write_text(CLASS)
    output = dra(*arguments).out
    assert (
        "no DeviceClass 'gpu.exmple.com' in these files or beside the driver, did you mean 'gpu.example.com'?" in output
    )
    (tmp_path / "c.yaml").write_text(CLAIM)
    assert dra(*arguments).out.startswith("ok ")
    class_file.write_text("a: [")
    for files in ((), (class_file,)):
        assert dra(*arguments, *files, code=2).err.count("deviceclass.yaml") == 1


def test_a_described_host_provides_the_attributes_that_a_driver_publishes(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "c.yaml").write_text(
        CLASS.replace('device.driver == "gpu.example.com"', 'device.attributes["gpu.example.com"].modle == "a"')
    )
    assert (
        "no device has the attribute 'modle' of gpu.example.com, did you mean 'model'?"
        in dra("validate", tmp_path / "c.yaml", "--driver", GPU, "--host", "nvlink-server").out
    )


# --- any typo -----------------------------------------------------------------------------------------


def objects() -> list[JSON]:
    found = []
    for path in sorted(ROOT.glob("examples/*/manifest.yaml")):
        unread: list[str] = []
        found += [d.value for d in stream.read(path, unread)]
        assert not unread
    return found


OBJECTS = objects()
LETTERS = st.sampled_from("abcdefghijklmnopqrstuvwxyzN")


def fields_of(
    value: Any, shape: shapes.Shape, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], shapes.Struct]]:
    """Yields the path of each field that is set, with the type of the object that contains it."""
    if isinstance(shape, shapes.Struct) and isinstance(value, dict):
        for key, inner in value.items():
            if (known := shape.fields.get(key)) is not None:
                yield (*path, key), shape
                yield from fields_of(inner, known.shape, (*path, key))
    elif isinstance(shape, shapes.ListShape) and isinstance(value, list):
        for i, item in enumerate(value):
            yield from fields_of(item, shape.item.shape, (*path, i))


def shape_of(obj: JSON) -> shapes.Struct:
    group, _, version = obj["apiVersion"].rpartition("/")
    found = shapes.kind_shape(group, version, obj["kind"])
    assert found is not None
    return found


FIELDS = [
    (obj, path, shape)
    for obj in OBJECTS
    for path, shape in fields_of(obj, shape_of(obj))
    if path not in {("apiVersion",), ("kind",), ("metadata",), ("metadata", "name")}
]


@st.composite
def typos(draw: st.DrawFn, word: str) -> str:
    at = draw(st.integers(0, len(word) - 1))
    letter = draw(LETTERS)
    swapped = word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]
    return draw(
        st.sampled_from(
            [word[:at] + word[at + 1 :], word[:at] + letter + word[at + 1 :], word[:at] + letter + word[at:], swapped]
        )
    )


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_typo_in_any_field_of_an_example_is_reported_with_a_known_field(data: st.DataObject) -> None:
    obj, path, shape = data.draw(st.sampled_from([f for f in FIELDS if len(str(f[1][-1])) > 3]))
    *parents, name = path
    typo = data.draw(typos(name))
    assume(typo and typo not in shape.fields)
    changed = copy.deepcopy(obj)
    at = changed
    for step in parents:
        at = at[step]
    at[typo] = at.pop(name)
    shown = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in (*parents, typo)).lstrip(".")
    (fault,) = [f.text for f in manifest_validation.object_errors(changed) if f.path == shown]
    suggestion = re.search(r"did you mean '(\w+)'\?", fault)
    assert suggestion, fault
    assert suggestion[1] in shape.fields, fault


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_value_of_any_type_in_any_field_is_validated_without_an_exception(data: st.DataObject) -> None:
    obj, path, _ = data.draw(st.sampled_from(FIELDS))
    *parents, name = path
    changed = copy.deepcopy(obj)
    at = changed
    for step in parents:
        at = at[step]
    at[name] = data.draw(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just([1]),
                                   st.just({}), st.just({"a": 1}), st.just([{}])))  # fmt: skip
    assert all(
        "Traceback" not in error.text and "Go struct" not in error.text
        for error in manifest_validation.object_errors(changed)
    )


def test_the_schema_of_a_driver_is_printed_and_an_unknown_kind_is_reported(dra: Dra) -> None:
    assert json.loads(dra("schema", GPU).out)["properties"]["kind"] == {"const": "GpuConfig"}
    assert json.loads(dra("schema", GPU, "--kind", "GpuConfig").out)["title"] == "GpuConfig"
    assert "not one of gpu.resource.example.com/v1alpha1 GpuConfig" in dra("schema", GPU, "--kind", "Other", code=2).err
    assert (
        "did you mean 'gpu.resource.example.com/v1alpha1'?"
        in dra("schema", GPU, "--kind", "gpu.resource.example.com/v1alpha", code=2).err
    )


KINDS = """
from dra_kubeletplugin import Config, Driver

class OldCard(Config):
    KIND, API_VERSION = "Card", "d.example.com/v1alpha1"

class Card(Config):
    KIND, API_VERSION, OLDER = "Card", "d.example.com/v1", (OldCard,)
    @classmethod
    def convert_from(cls, older): return cls()

class Part(Config):
    KIND, API_VERSION = "Part", "d.example.com/v1"

class Cards(Driver):
    name, config = "d.example.com", [Card, Part]
    def devices(self): return []
    def prepare(self, claim): return []
"""


@pytest.mark.parametrize(
    ("options", "titles"),
    [
        ([], ["Card", "Part"]),
        (["--kind", "Card"], ["Card"]),
        (["--kind", "Part"], ["Part"]),
        (["--kind", "d.example.com/v1"], ["Card", "Part"]),
        (["--kind", "d.example.com/v1alpha1"], ["OldCard"]),
    ],
)
def test_the_schema_contains_all_selected_kinds_in_their_newest_versions(
    options: list[str], titles: list[str], tmp_path: Path, dra: Dra
) -> None:
    (tmp_path / "cards.py").write_text(KINDS)
    schema = json.loads(dra("schema", tmp_path / "cards.py", *options).out)
    assert sorted(s["title"] for s in schema.get("oneOf", [schema])) == titles
