"""The nodes where devices can be used: this node, nodes by name or label, or all nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from ..base.json_types import ReadOnlyJSON
from ..errors import InvalidObjectError, describe, printable
from .validation import names as rules
from .validation.common import node_selector

NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
"""The fields of a slice or of a device that select its nodes."""
_HOSTNAME = "kubernetes.io/hostname"


_WRONG_ARGUMENTS = {
    "matching": ("the labels are not valid", '{"rack": ["r1", "r2"]}'),
    "selector": (
        "the argument is not a NodeSelector",
        '{"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]}',
    ),
}
"""By method of :class:`Nodes`, the error for an argument of a wrong type, and an example of a valid argument."""


class Where(Enum):
    """The kinds of :class:`Nodes`."""

    THIS = "this node"
    SELECTED = "selected nodes"
    ALL = "all nodes"


class _Requirement(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    key: str
    operator: str
    values: list[str] = []


class _Term(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    match_expressions: list[_Requirement] = []
    match_fields: list[_Requirement] = []


class _Selector(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    node_selector_terms: list[_Term]


@dataclass(frozen=True)
class Nodes:
    """The nodes where a pool's devices, or one device, can be used. Created with the class methods; compared by value."""

    where: Where
    node: str = ""  # the only node, if it is selected by name
    selector_json: str = ""  # a NodeSelector
    fault: str = ""  # why the arguments of the class method are invalid; the pool or the device is then not published

    @classmethod
    def this(cls) -> Nodes:
        """The node that the plugin runs on. The plugin itself publishes such a pool."""
        return cls(Where.THIS)

    @classmethod
    def all(cls) -> Nodes:
        """All nodes of the cluster."""
        return cls(Where.ALL)

    @classmethod
    def named(cls, *names: str) -> Nodes:
        """Nodes by name.

        A single node is selected by ``metadata.name``. Kubernetes can select several nodes only by label. They are
        selected by ``kubernetes.io/hostname``, which equals the node's name unless the kubelet or the cloud provider
        sets another value.
        """
        if not names:
            return cls(Where.SELECTED, fault="Nodes.named() needs at least one name of a node")
        for name in names:
            if not isinstance(name, str) or rules.subdomain(name):
                return cls(Where.SELECTED, fault=f"Nodes.named(): {printable(name)!r} is not a valid node name")
        if len(names) > 1:
            return cls.matching({_HOSTNAME: names})
        fields = [{"key": "metadata.name", "operator": "In", "values": list(names)}]
        return cls(Where.SELECTED, names[0], _text({"nodeSelectorTerms": [{"matchFields": fields}]}))

    @classmethod
    def matching(cls, labels: Mapping[str, str | Sequence[str]]) -> Nodes:
        """Nodes that have all ``labels``, each with one of its values."""
        try:
            values = {k: [v] if isinstance(v, str) else list(v) for k, v in labels.items()}
        except Exception as e:  # the argument comes from the driver and may have any type
            return cls(Where.SELECTED, fault=f"Nodes.matching(): labels must map names to values: {describe(e)}")
        if not values:
            fault = "Nodes.matching() needs at least one label: without labels it would match no node"
            return cls(Where.SELECTED, fault=fault)
        expressions = [{"key": k, "operator": "In", "values": v} for k, v in values.items()]
        return cls._selected({"nodeSelectorTerms": [{"matchExpressions": expressions}]}, "matching")

    @classmethod
    def selector(cls, selector: ReadOnlyJSON) -> Nodes:
        """A ``NodeSelector`` of core/v1 as JSON, with exactly one term (KEP-4381), which must not be empty."""
        return cls._selected(selector, "selector")

    @classmethod
    def _selected(cls, value: object, method: str) -> Nodes:
        wrong, example = _WRONG_ARGUMENTS[method]
        try:
            selector = msgspec.to_builtins(msgspec.convert(value, _Selector))
            faults = "; ".join(str(f) for f in node_selector(selector, "nodeSelector", one_term=True))
            text = _text(selector)
        except Exception as e:  # the argument comes from the driver and may contain any type
            fault = f"Nodes.{method}(): {wrong}: {printable(describe(e))}. A valid argument is {example}"
            return cls(Where.SELECTED, fault=fault)
        if not faults and not selector["nodeSelectorTerms"][0]:
            faults = (
                f"nodeSelector.nodeSelectorTerms[0] is empty and would match no node; write {example}, or Nodes.all()"
            )
        if faults:
            return cls(Where.SELECTED, fault=f"Nodes.{method}(): {printable(faults)}")
        return cls(Where.SELECTED, selector_json=text)

    def of_slice(self, this: str) -> ReadOnlyJSON:
        """Returns the fields of a slice's spec; ``this`` is the name of the plugin's node. For the framework."""
        if self.fault:
            raise InvalidObjectError(self.fault)
        match self.where:
            case Where.THIS:
                return {"nodeName": this}
            case Where.ALL:
                return {"allNodes": True}
            case Where.SELECTED:
                return {"nodeSelector": json.loads(self.selector_json)}

    def of_device(self) -> ReadOnlyJSON:
        """Returns the fields of a device in a slice with ``perDeviceNodeSelection``. For the framework."""
        if self.node:
            return {"nodeName": self.node}
        return {} if self.where is Where.THIS else self.of_slice("")


def _text(selector: ReadOnlyJSON) -> str:
    return json.dumps(selector, sort_keys=True)
