"""Generates pages, tables and diagrams of the documentation: `make docs`. A test fails if one is not current.

The package itself generates the pages of commands and metrics.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import command_reference
import msgspec
import reference_pages
import sequence
import yaml

from dra_devkit import kubernetes_releases
from dra_devkit.hosts import described, schema
from dra_devkit.hosts import model as parts
from dra_devkit.packaging.manifests import monitoring, source_reader
from dra_kubeletplugin.resourceapi import fields

ROOT = Path(__file__).parents[1]
ALERTS = monitoring.FOLDER / "alerts.yaml"


def files() -> dict[str, str]:
    """Returns every generated file: path in the tree and text."""
    return {
        "docs/errors.md": reference_pages.errors_page(),
        "docs/settings.md": reference_pages.settings_page(),
        "docs/metrics.md": reference_pages.metrics_page(),
        "docs/commands.md": command_reference.page(),
        "docs/conformance-checks.md": reference_pages.conformance_page(),
        "docs/hosts.md": hosts(),
        "docs/api.md": filled("docs/api.md", names=names()),
        "docs/monitoring.md": filled("docs/monitoring.md", alerts=alerts()),
        "docs/kubernetes.md": filled("docs/kubernetes.md", gates=of_gates(), without=without(), releases=of_releases()),
        "docs/security.md": filled("docs/security.md", permissions=permissions()),
        **sequence.files(),
    }


def filled(path: str, **parts: str) -> str:
    """Returns a page with its generated parts replaced: between ``<!-- NAME -->`` and ``<!-- end -->``."""
    text = (ROOT / path).read_text()
    for name, table in parts.items():
        text, count = re.subn(
            rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)",
            lambda m, t=table: f"{m[1]}\n{t}\n{m[2]}",  # type: ignore[misc]
            text,
            count=1,
            flags=re.DOTALL,
        )
        assert count == 1, f"{path} has no place for {name}"
    return text


def table(head: str, rows: Iterator[str]) -> str:
    return "\n".join([head, re.sub(r"[^|]+", "---", head), *rows, ""])


# --- the Python API ---------------------------------------------------------------------------------

_MODULES = {
    "dra_kubeletplugin": {
        "a driver": "Driver, run, Role, Health, Check, Gate",
        "what it publishes": "Device, Pool, Nodes, Taint, Capacity, RequestPolicy, CounterSet, NodeResource, Quantity, Version",
        "partitions": "partitions, Partition, Partitioned, Profile",
        "claims": "Claim, AllocatedDevice, Config, PreparedDevice, PreparedClaim, RecoveredClaim, SharedStep, BoundClaim, BoundDevice",
        "what containers get": "ContainerEdits, DeviceNode, Mount, Hook, NetDevice",
        "status in claims": "DeviceStatus, Condition, NetworkData",
        "the machine": "Host, PciFunction",
        "errors": "DraError, RetryableError, PermanentError",
    },
    "dra_devkit.testing": {
        "fixtures": "Node, Api, Kubelet, Cluster",
        "in the event loop of a test": "node_with, on_node, plugin_on, controller_on, DriverNode, AsyncApi, Timers",
        "claims": "ClaimSpec, Request, FirstAvailable, SubRequest, MatchAttribute, DistinctAttribute, OpaqueConfig, Toleration",
        "objects": "claim, template, pod, device_class",
        "results": "env_of, oci_of, Published, PublishedDevice, PublishedError, Event, PodError, FaultError",
    },
    "dra_tools": {
        "the state of a cluster": "take, Snapshot, Gap, with_events, from_files",
        "why a pod waits": "explain, waiting, Explanation, ExplanationState, ReasonKind, NodeGroup, "
        "RequestOnNodes, Reason, Example, SuggestedChange, ClaimState, HeldDevice",
        "whether a pod would fit": "simulate, Simulation, Placement, Fit",
        "who holds which device": "overview, Overview, LiveOverview",
    },
    "dra_kubeletplugin.metadata": {
        "reading metadata files": "devices, documents, Device, Document, ClaimRef, Network, Value, CONTAINER_ROOT, MetadataError",
    },
}
"""Every public name once. `make docs` fails if these are not exactly the names of ``__all__``."""
_INTRODUCTIONS = {
    "dra_kubeletplugin": "For drivers.",
    "dra_devkit.testing": "For tests of drivers: see [testing a driver](testing.md).",
    "dra_tools": "For bots and dashboards: see [operators' questions](operators.md#from-a-program).",
    "dra_kubeletplugin.metadata": "For programs in containers: reads the files that describe their devices (KEP-5304). Needs no gRPC.",
}


def names() -> str:
    """Returns the list of names from which docs/site_hooks.py makes a page for each name."""

    def rows() -> Iterator[str]:
        for module, groups in _MODULES.items():
            loaded = importlib.import_module(module)
            listed = [name for group in groups.values() for name in group.split(", ")]
            public = [name for name in loaded.__all__ if name != "__version__"]
            assert sorted(listed) == sorted(public), (
                f"{module}: {set(listed) ^ set(public) or 'a name is listed twice'}"
            )
            yield f"## {module}\n"
            yield f"{_INTRODUCTIONS[module]}\n"
            for group, text in groups.items():
                yield f"### {group[0].upper()}{group[1:]}\n"
                # mkdocstrings resolves the links; `make site` fails if there is no such name.
                yield from (f"- [`{n}`][{module}.{n}]{purpose(getattr(loaded, n))}" for n in text.split(", "))
                yield ""

    return "\n".join(rows())


def purpose(value: object) -> str:
    """Returns the first sentence of the docstring of a class or function."""
    if not (inspect.isclass(value) or inspect.isroutine(value)) or not value.__doc__:
        return ""
    first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", first).replace("``", "`")
    return ": " + re.split(r"(?<=\.)\s+(?=[A-Z])", text)[0].rstrip(".")


# --- deploy/ ----------------------------------------------------------------------------------------


def alerts() -> str:
    def rows() -> Iterator[str]:
        for group in yaml.safe_load(ALERTS.read_text())["groups"]:
            for rule in group["rules"]:
                annotations, wait = rule["annotations"], rule.get("for", "at once")
                meaning = re.sub(
                    r"\{\{ \$(?:labels\.)?(\w+).*?\}\}",
                    r"*\1*",
                    f"{annotations['summary']} {annotations['description']}",
                )
                anchor = annotations["runbook_url"].partition("#")[2]
                remedy = f"[{anchor.replace('-', ' ')}](troubleshooting.md#{anchor})"
                yield f"| `{rule['alert']}` | {rule['labels']['severity']} | {wait} | {meaning} | {remedy} |"

    return table("| alert | severity | after | what it means | what to do |", rows())


def permissions() -> str:
    """Returns the permissions of all Roles that ``dra deploy`` renders."""

    def rows() -> Iterator[str]:
        loaded = source_reader.load_source()
        for manifest in loaded.all:
            found = manifest.render(frozenset(), {name: name for name in loaded.parameters})
            if found["kind"] not in {"Role", "ClusterRole"}:
                continue
            who = "controller" if found["metadata"]["name"].endswith("-controller") else "plugin"
            needs = f"`{manifest.feature}`" if manifest.feature else "always"
            where = "its own namespace" if found["kind"] == "Role" else "the cluster"
            for rule in found["rules"]:
                named = (
                    f" named {', '.join(f'`{n}`' for n in rule['resourceNames'])}" if "resourceNames" in rule else ""
                )
                resources = ", ".join(f"`{r}`" for r in rule["resources"])
                yield f"| {who} | {resources}{named} | {', '.join(rule['verbs'])} | {where} | {needs} |"

    return table("| who | what | may | in | with the feature |", rows())


# --- described hosts --------------------------------------------------------------------------------

_HOSTS = """# Described hosts

Generated from `packages/devkit/src/dra_devkit/hosts/schema.py` by `make docs`: its example has every key, and a test builds it.

A described host is a machine in a few lines of YAML, for tests and demonstrations without hardware: `dra dev DRIVER --host FILE`,
`@pytest.mark.dra(host="FILE")`, `dra simulate --host FILE=3`. The package contains descriptions that you
select by name: {machines}.

{head}
```yaml
{example}
```

{rest}

## Record a machine

`dra inspect --describe-host > my-server.yaml` describes the machine that it runs on. `dra inspect --host my-server.yaml` then prints the
same as `dra inspect` on the machine. The record contains:

- each function with its BARs (`resource`), reset methods, link and class devices
- NUMA nodes, and device nodes that belong to no class
- `/proc/devices`, and the files in `/proc/driver/<name>` for the driver of each function
- the versions of kernel modules that are not part of the kernel's source

`--describe-file PATH` adds a file or folder, for example `/proc/cmdline` or `/sys/class/dmi/id/product_name`. You can repeat it.

A machine does not show which function a device node without a class belongs to. So the record has these nodes in the top-level `nodes`.
Move a node to its function if the kernel driver creates and removes the node with the function, such as `/dev/nvidia0`.

Files below `/proc` can contain serial numbers. Replace them before you publish a record.

## Keys

{keys}
Write keys that several functions share once, with an anchor (`attributes: &card`), and merge them into the other functions
(`attributes: {{<<: *card, label: right}}`).

Numbers are decimal or hexadecimal (`0x10ee`). Unknown keys and values of a wrong type are errors. One run reports all of them,
each with its key and line. If there are none, the run checks for contradictions, such as two functions at one address, and reports
all of them.
"""


def example() -> str:
    """Returns the YAML example in the docstring of `schema`, which defines the format."""
    found = re.search(r"::\n\n(.*?)\n\n(?=\S)", schema.__doc__ or "", re.DOTALL)
    assert found
    return "\n".join(line[4:] for line in found[1].splitlines())


_KEYS = {  # the meaning of each key, by its place in the file; `make docs` fails if a key is missing here or unknown
    "": {
        "functions": "PCI functions, below",
        "numa_nodes": "by number, below",
        "drivers": "kernel drivers that are loaded but not bound to a function; `vfio-pci` is always loaded",
        "nodes": "device nodes that belong to no function: name below `/dev`, and `c` or `b` with `major:minor`",
        "proc": "files below `/proc` that belong to no function: path and content",
        "files": "any other files of sysfs: path and content",
    },
    "functions[]": {
        "address": "`domain:bus:device.function`",
        "vendor": "16 bits",
        "device": "16 bits",
        "class": "24 bits",
        "subsystem_vendor": "16 bits",
        "subsystem_device": "16 bits",
        "revision": "8 bits",
        "behind": "address of the bridge, port or controller above this function",
        "root": "the root complex, or a path below `behind`, as with Intel's VMD",
        "driver": "the kernel driver that is bound at boot",
        "numa": "the NUMA node; if not set, the kernel reports -1",
        "iommu_group": "the IOMMU group; a function without a group cannot be used with VFIO",
        "boot_vga": "whether the console uses this function",
        "link": "the maximum speed and width of its link, below",
        "vfs": "its virtual functions (SR-IOV), below",
        "classes": 'class devices that its driver makes: class, name, attributes. `dev: "240:0"` makes a device node, `devname` names it',
        "nodes": "device nodes that its driver makes and that belong to no class: name below `/dev`, and numbers",
        "proc": "files below `/proc` that its driver makes: path and content",
        "attributes": "any other files of its folder: path and content",
    },
    "functions[].link": {"speed": "GT/s: {speeds}", "width": "lanes: {widths}"},
    "functions[].vfs": {
        "total": "maximum number of virtual functions",
        "device": "device id of the virtual functions",
        "enabled": "number of virtual functions that are enabled at boot; needs `driver` of the function",
        "driver": "kernel driver of the virtual functions",
        "iommu_group": "IOMMU group of the first virtual function; each further one has the next number",
        "offset": "distance from the function's address to its first virtual function's; by default, free addresses",
        "stride": "distance between the addresses of two virtual functions",
    },
    "numa_nodes{{}}": {
        "cpus": "list of CPUs, such as `0-15,32-47`",
        "socket": "number of the CPU package",
        "distances": "distances to all nodes in order, as in the ACPI table SLIT",
    },
}
_STRUCTS = {
    "": parts.HostDescription, "functions[]": parts.Function, "functions[].link": parts.Link, "functions[].vfs": parts.VirtualFunctions,
    "numa_nodes{{}}": parts.NumaNode,
}  # fmt: skip
_DERIVED_DEFAULTS = {  # defaults that depend on other keys
    "subsystem_vendor": "the vendor",
    "root": "from the address",
    "functions[].vfs.device": "the function's id",
    "offset": "free addresses",
}


def keys() -> Iterator[str]:
    for place, meanings in _KEYS.items():
        info = msgspec.inspect.type_info(_STRUCTS[place])
        assert isinstance(info, msgspec.inspect.StructType)
        fields = {f.encode_name: f for f in info.fields}
        assert fields.keys() == meanings.keys(), f"{place}: {fields.keys() ^ meanings.keys()}"
        for name, text in meanings.items():
            path = f"{place}.{name}".lstrip(".").format()
            field, meaning = fields[name], text.format(speeds=listed(parts.SPEEDS), widths=listed(parts.WIDTHS))
            yield f"| `{path}` | {type_name(field.type)} | {default(path, name, field)} | {meaning} |"


def type_name(found: msgspec.inspect.Type) -> str:
    match found:
        case msgspec.inspect.UnionType(types=types):
            names = {type_name(t) for t in types if not isinstance(t, msgspec.inspect.NoneType)}
            return "text" if "text" in names else names.pop()
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return "number"
        case msgspec.inspect.VarTupleType():
            return "list"
    return "mapping"


def default(path: str, name: str, field: msgspec.inspect.Field) -> str:
    found = _DERIVED_DEFAULTS.get(path) or _DERIVED_DEFAULTS.get(name)
    if found:
        return found
    if field.required:
        return "required"
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT or value in (None, "", ()):
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)


def hosts() -> str:
    head, _, rest = (schema.__doc__ or "").partition("::\n")
    return _HOSTS.format(
        machines=", ".join(f"`{name}`" for name in described.machines()),
        head=head.split("\n\n", 2)[1].strip().replace("``", "`") + ":\n",
        example=example(),
        rest=rest[rest.index("\n\nA class") :].strip().replace("``", "`"),
        keys=table("| key | type | default | what |", keys()),
    )


# --- releases ---------------------------------------------------------------------------------------

_STAGES = {
    kubernetes_releases.Stage.ABSENT: " ",
    kubernetes_releases.Stage.ALPHA: "alpha, off",
    kubernetes_releases.Stage.BETA_OFF: "beta, off",
    kubernetes_releases.Stage.BETA: "beta, on",
    kubernetes_releases.Stage.UNLOCKED: "stable",
    kubernetes_releases.Stage.STABLE: "stable",
}


def of_gates() -> str:
    def rows() -> Iterator[str]:
        for name in kubernetes_releases.gates():
            stages = " | ".join(_STAGES[kubernetes_releases.stage(name, r)] for r in kubernetes_releases.RELEASES)
            here = (
                kubernetes_releases.NOT_IMPLEMENTED.get(name, "yes")
                .replace("it has no", "no: it has no")
                .replace("its ", "no: its ", 1)
            )
            yield f"| `{name}` | {stages} | {here} |"

    return table(f"| gate | {' | '.join(kubernetes_releases.RELEASES)} | in the local cluster |", rows())


def without() -> str:
    """Returns the table of fields that the plugin does not publish while a gate is off, from the table of fields."""

    def rows() -> Iterator[str]:
        for field in fields.fields_of("ResourceSlice"):
            row = field.row
            if not row.gate:
                continue
            effect = "published without it"
            if row.refuse:
                owner = "device" if field.path.startswith("spec.devices[].") else "pool"
                effect = f"the {owner} is not published: {row.refuse.replace(' {key}', '')}"
                if row.harmless:
                    harmless = ", ".join(f"`{name}: {value}`" for name, value in row.harmless.items())
                    effect += f"; with {harmless}, published without it"
            elif row.refuse_remote:
                effect += f"; a pool that does not belong to the plugin's node is not published: {row.refuse_remote}"
            yield f"| `{row.gate}` | `{field.path.removeprefix('spec.')}` | {field.since or ' '} | {effect} |"

    return table("| gate | field of a slice | since | where the gate is off |", rows())


def of_releases() -> str:
    def rows() -> Iterator[str]:
        for release in kubernetes_releases.RELEASES:
            features = kubernetes_releases.Features.of(release, {})
            kubelet = features.kubelet
            yield (
                f"| {release} | {', '.join(sorted(features.served))} | {', '.join(features.slice_fields)} | "
                f"{', '.join(features.taint_rules)} | {', '.join(kubelet.health) or 'none'} |"
            )

    head = "| Kubernetes | `resource.k8s.io` by default | slices are selected by | DeviceTaintRules | health services of the kubelet |"
    return table(head, rows())


def main() -> None:
    for path, text in files().items():
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
