"""Parses ``PCI_SELECT``, which selects the functions to publish."""

from __future__ import annotations

from collections.abc import Mapping

from dra_kubeletplugin import PciFunction

KEYS = ("vendor", "device", "class", "driver", "address")


def parse_selection(text: str) -> list[Mapping[str, str]]:
    """Returns the alternatives, each a mapping of conditions. Raises ``ValueError`` if the text is malformed."""
    out: list[Mapping[str, str]] = []
    for alternative in filter(None, (a.strip() for a in text.split(";"))):
        conditions = {}
        for part in alternative.split(","):
            key, equals, value = part.strip().partition("=")
            if not equals or key not in KEYS or not value:
                raise ValueError(f"pci_select has {part!r}: write it like vendor=10ee,class=12;driver=xclmgmt")
            conditions[key] = value.lower().removeprefix("0x") if key != "driver" else value
        out.append(conditions)
    return out


def matches(fn: PciFunction, native_driver: str | None, conditions: Mapping[str, str]) -> bool:
    """Reports whether all conditions are true. For ``native_driver``, see :meth:`NativeDrivers.of`."""
    have = {
        "vendor": f"{fn.vendor:04x}",
        "device": f"{fn.device_id:04x}",
        "class": f"{fn.class_code:06x}",
        "driver": native_driver or "",
        "address": fn.address,
    }
    return all(have[k].startswith(v) if k == "class" else have[k] == v for k, v in conditions.items())
