"""What a new driver and its parts are called: one name, good for a folder, a Python package, an image and Kubernetes' objects."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from .._version import __version__
from ..errors import SettingsError
from ..settings import DNS_SUBDOMAIN, MAX_DRIVER_NAME

MAX_NAME = 32
"""Characters; names of objects are made from it, see ``deploying/source/parameters.yaml``."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VENDOR = re.compile(r"(0x)?([0-9a-f]{4})")
_TAKEN = {"dra", "dra_kubeletplugin", "kubernetes", "pytest", "src", "tests"}


@dataclass(frozen=True)
class Names:
    """What a package is made from. ``vendor`` is the PCI id, four hex digits; empty where the kind has none."""

    kind: str
    name: str
    driver_name: str
    vendor: str = ""

    @property
    def module(self) -> str:
        return module_of(self.name)

    def words(self) -> Mapping[str, str]:
        """What stands in the templates, by its name there."""
        major, minor, *_ = (int(part) for part in __version__.split("."))
        return {
            "name": self.name,
            "module": self.module,
            "class_name": "".join(part.capitalize() for part in self.name.split("-")),
            "env": self.module.upper(),
            "driver_name": self.driver_name,
            "vendor": self.vendor.upper(),
            "requires": f">={__version__},<{major}.{minor + 1}",
        }


def module_of(name: str) -> str:
    return name.replace("-", "_")


def check_name(name: str) -> str:
    """Raises :class:`SettingsError` for what is no name of a folder, a Python package, an image and a DNS label alike."""
    if not _NAME.fullmatch(name) or "--" in name or len(name) > MAX_NAME:
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:MAX_NAME].strip("-")
        hint = f": {near}?" if near and near != name else ", such as acme-fpga"
        raise SettingsError(
            f"NAME {name!r}: give at most {MAX_NAME} lower case letters, digits and single '-', a letter first{hint}"
        )
    module = module_of(name)
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN:
        raise SettingsError(
            f"NAME {name!r}: {module} means something else in Python already: give another, such as {name}-driver"
        )
    return name


def check_driver_name(text: str) -> str:
    """Raises :class:`SettingsError` for what Kubernetes takes for no driver's name."""
    if len(text) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(text):
        raise SettingsError(
            f"--driver-name {text!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: lower case letters, digits, '-' and "
            "'.', such as fpga.example.com"
        )
    return text


def check_vendor(text: str) -> str:
    """Four hex digits. Raises :class:`SettingsError`."""
    found = _VENDOR.fullmatch(text.lower())
    if not found or found[2] in {"0000", "ffff"}:
        raise SettingsError(
            f"--vendor-id {text!r} is no PCI vendor: four hex digits, such as 10ee; `lspci -nn` shows them"
        )
    return found[2]
