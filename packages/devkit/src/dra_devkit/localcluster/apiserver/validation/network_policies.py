"""Validates a NetworkPolicy, as ``pkg/apis/networking/validation`` of Kubernetes does."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required

from .checks import label_selector, optional_choice, port

_PROTOCOLS = ("SCTP", "TCP", "UDP")
_TYPES = ("Egress", "Ingress")
_NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
_CIDR = re.compile(r"[0-9A-Fa-f:.]+/[0-9]+")


def validate_network_policy(obj: ReadOnlyJSON, old: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a NetworkPolicy."""
    spec = obj.get("spec") or {}
    out = label_selector(spec.get("podSelector"), "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for i, rule in enumerate(spec.get(direction) or ()):
            where = f"spec.{direction}[{i}]"
            for j, item in enumerate(rule.get("ports") or ()):
                out += _port(item, f"{where}.ports[{j}]")
            for j, peer in enumerate(rule.get(peers) or ()):
                out += _peer(peer, f"{where}.{peers}[{j}]")
    types = spec.get("policyTypes") or []
    if len(types) > len(_TYPES):
        return [*out, invalid("spec.policyTypes", types, "may not specify more than two policyTypes")]
    for i, kind in enumerate(types):
        out += optional_choice(kind, f"spec.policyTypes[{i}]", _TYPES)
    return out


def _port(item: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    yield from optional_choice(item.get("protocol"), f"{path}.protocol", _PROTOCOLS)
    first, last = item.get("port"), item.get("endPort")
    if first is not None:
        yield from port(first, f"{path}.port")
    if last is None:
        return
    if not isinstance(first, int):
        reason = "is not specified" if first is None else "is non-numeric"
        yield invalid(f"{path}.endPort", last, f"may not be specified when `port` {reason}")
        return
    if last < first:
        yield invalid(f"{path}.endPort", last, "must be greater than or equal to `port`")
    yield from port(last, f"{path}.endPort")


def _peer(peer: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    for field in ("podSelector", "namespaceSelector"):
        yield from label_selector(peer.get(field), f"{path}.{field}")
    if peer.get("ipBlock") is not None:
        yield from _ip_block(peer["ipBlock"], f"{path}.ipBlock")
    if not any(value is not None for value in peer.values()):
        yield required(path, "must specify a peer")
    elif peer.get("ipBlock") is not None and len([v for v in peer.values() if v is not None]) > 1:
        yield forbidden(path, "may not specify both ipBlock and another peer")


def _ip_block(block: ReadOnlyJSON, path: str) -> Iterator[FieldError]:
    if not block.get("cidr"):
        yield required(f"{path}.cidr")
        return
    network = _parsed(block["cidr"])
    if network is None:
        yield invalid(f"{path}.cidr", block["cidr"], _NO_CIDR)
        return
    for i, text in enumerate(block.get("except") or ()):
        where, excluded = f"{path}.except[{i}]", _parsed(text)
        if excluded is None:
            yield invalid(where, text, _NO_CIDR)
        elif excluded == network or excluded.version != network.version or not excluded.subnet_of(network):  # type: ignore[arg-type]
            yield invalid(where, text, "must be a strict subset of `cidr`")


def _parsed(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if _CIDR.fullmatch(text) else None
    except ValueError:
        return None
