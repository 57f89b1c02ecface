"""Checks and derives the names of a new driver from one name that is valid for a folder, a Python package, an image and objects."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from ... import __version__
from ...base.settings import DNS_SUBDOMAIN, MAX_DRIVER_NAME
from ...base.yaml.loader import is_text
from ...errors import SettingsError

MAX_NAME = 32
"""The maximum number of characters, because names of objects begin with this name; see ``manifests/source/parameters.yaml``."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VENDOR = re.compile(r"(0x)?([0-9a-f]{4})")
_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
# Module and distribution names that a new package would hide or be hidden by: the framework and its dependencies, and
# tools that test, check and build a driver. The list is fixed, because `dra new` may run where few of them are
# installed.
_RESERVED = {
    "dra", "dra_kubeletplugin", "google", "google_re2", "grpc", "grpc_health", "grpcio", "grpcio_health_checking", "h11",
    "hatchling", "kubernetes", "msgspec", "protobuf", "pyyaml", "re2", "shtab", "textual", "typing_extensions", "yaml",
    "ast_serialize", "iniconfig", "librt", "mypy", "mypy_extensions", "mypyc", "packaging", "pathspec", "pluggy", "py",
    "pygments", "pytest", "ruff", "tomlkit", "trove_classifiers",
    "conftest", "pip", "setuptools", "src", "test", "tests", "wheel",
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """The names of one package.

    ``vendor`` is the PCI vendor id, four hex digits; empty unless ``kind`` is ``pci``.
    """

    kind: str
    name: str
    driver_name: str
    vendor: str = ""

    @property
    def module(self) -> str:
        return module_of(self.name)

    def words(self) -> Mapping[str, str]:
        """Returns the values of the templates' variables, by name."""
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
    """Returns ``name``.

    Raises :class:`SettingsError` unless it is valid as a folder, a Python package, an image and a DNS label.
    """
    if not _NAME.fullmatch(name) or "--" in name or len(name) > MAX_NAME:
        ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
        suggestion = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-0123456789")[:MAX_NAME].strip("-")
        hint = suggestion if suggestion and suggestion != name and not _conflict(suggestion) else "acme-fpga"
        raise SettingsError(
            f"NAME {name!r}: use at most {MAX_NAME} lower case letters, digits and single '-', and begin with a letter, such as {hint}"
        )
    if where := _conflict(name):
        raise SettingsError(f"NAME {name!r} has another meaning in {where}: choose another name, such as {name}-driver")
    return name


def _conflict(name: str) -> str:
    """Returns where the name already has another meaning ("Python" or "YAML"), else ""."""
    module = module_of(name)
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _RESERVED:
        return "Python"
    return "YAML" if name in _YAML else ""


def check_driver_name(text: str) -> str:
    """Returns ``text``.

    Raises :class:`SettingsError` unless it is a valid driver name for Kubernetes and a string in YAML.
    """
    if len(text) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(text):
        raise SettingsError(
            f"--driver-name {text!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: lower case letters, digits, '-' and "
            "'.', such as fpga.example.com"
        )
    # kubectl and other YAML parsers have different rules
    if not is_text(text) or not isinstance(yaml.safe_load(text), str):
        raise SettingsError(
            f"--driver-name {text!r} is not text in YAML: use a name with a domain, such as fpga.example.com"
        )
    return text


def check_vendor(text: str) -> str:
    """Returns the vendor id as four hex digits. Raises :class:`SettingsError` if it is invalid."""
    found = _VENDOR.fullmatch(text.lower())
    if not found or found[2] in {"0000", "ffff"}:
        raise SettingsError(
            f"--vendor-id {text!r} is not a PCI vendor id: use four hex digits, such as 10ee; `lspci -nn` shows the id"
        )
    return found[2]
