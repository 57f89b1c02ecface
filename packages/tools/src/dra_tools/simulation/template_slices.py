"""The slices of a template node: the devices with which an autoscaler expects a new node of a node group.

cluster-autoscaler adds them to its simulation with the template node (``NodeInfo.LocalResourceSlices``). It copies only slices with
``spec.nodeName``, renames pools and slices, and its scheduler ignores the devices of an incomplete pool. Sources:
``SanitizedNodeResourceSlices`` in kubernetes-sigs/cluster-autoscaler, and ``docs/dra_support.md`` in kubernetes/autoscaler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_devkit.generations import newest_by_pool
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.resourceapi.conversion import convert

from ..taints import BLOCKING_EFFECTS

_VERSION = "v1"  # cluster-autoscaler decodes this version


@dataclass(frozen=True)
class TemplateSlices:
    """The slices to export.

    Attributes:
        notes: sentences about pools that are left out, and about devices with taints.
        incomplete: whether a pool of the node was left out because some of its slices are missing.
    """

    slices: tuple[JSON, ...]
    notes: tuple[str, ...] = ()
    incomplete: bool = False


def template_slices(slices: Iterable[Mapping[str, Any]], node: str) -> TemplateSlices:
    """Returns the slices of the pools of one node, without the metadata of the objects in a cluster."""
    found: list[JSON] = []
    notes: list[str] = []
    incomplete = False
    for (driver, pool), parts in sorted(newest_by_pool(slices).items()):
        expected = parts[0]["spec"]["pool"]["resourceSliceCount"]
        if any(part["spec"].get("nodeName") != node for part in parts):
            notes.append(
                f"pool {pool} of {driver} is not exported: its devices are not only of node {node}, and a new node does not add them"
            )
        elif len(parts) != expected:
            incomplete = True
            notes.append(
                f"pool {pool} of {driver} is not exported: it has {len(parts)} of {expected} slices; run the command again "
                "when the driver has written all of them"
            )
        else:
            found += map(_template, parts)
            notes += _taints(driver, parts)
    return TemplateSlices(tuple(found), tuple(notes), incomplete)


def _template(sl: Mapping[str, Any]) -> JSON:
    head = {"apiVersion": sl["apiVersion"], "kind": sl["kind"], "metadata": {"name": sl["metadata"]["name"]}}
    return convert({**head, "spec": sl["spec"]}, _VERSION)


def _taints(driver: str, slices: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for sl in slices:
        for device in sl["spec"].get("devices") or ():
            for taint in device.get("taints") or ():
                if taint["effect"] in BLOCKING_EFFECTS:
                    yield (
                        f"device {device['name']} of {driver} has the taint {taint['key']}, and so has the device of a new "
                        "node: delete the taint from the export if new devices do not have it"
                    )
