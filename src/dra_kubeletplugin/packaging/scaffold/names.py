"""What a new driver and its parts are called: one name, good for a folder, a Python package, an image and Kubernetes' objects."""

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
"""Characters; names of objects are made from it, see ``deploying/source/parameters.yaml``."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VENDOR = re.compile(r"(0x)?([0-9a-f]{4})")
_YAML = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
# What a package of ours would hide, or be hidden by: the framework and what it needs, what tests, checks and builds a driver, by module and
# by distribution. Listed, because `dra new` may run where little of it is installed.
_TAKEN = {
    "dra", "dra_kubeletplugin", "google", "google_re2", "grpc", "grpc_health", "grpcio", "grpcio_health_checking", "h11",
    "hatchling", "kubernetes", "msgspec", "protobuf", "pyudev", "pyyaml", "re2", "shtab", "textual", "typing_extensions", "yaml",
    "ast_serialize", "iniconfig", "librt", "mypy", "mypy_extensions", "mypyc", "packaging", "pathspec", "pluggy", "py",
    "pygments", "pytest", "ruff", "tomlkit", "trove_classifiers",
    "conftest", "pip", "setuptools", "src", "test", "tests", "wheel",
}  # fmt: skip


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
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
        near = re.sub(r"[^a-z0-9]+", "-", plain).strip("-0123456789")[:MAX_NAME].strip("-")
        hint = f": {near}?" if near and near != name and not _means(near) else ", such as acme-fpga"
        raise SettingsError(
            f"NAME {name!r}: give at most {MAX_NAME} lower case letters, digits and single '-', a letter first{hint}"
        )
    if where := _means(name):
        raise SettingsError(f"NAME {name!r} means something else in {where}: give another, such as {name}-driver")
    return name


def _means(name: str) -> str:
    """Where the name means something else already; empty where it does not."""
    module = module_of(name)
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _TAKEN:
        return "Python"
    return "YAML" if name in _YAML else ""


def check_driver_name(text: str) -> str:
    """Raises :class:`SettingsError` for what Kubernetes takes for no driver's name, or YAML for no text."""
    if len(text) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(text):
        raise SettingsError(
            f"--driver-name {text!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: lower case letters, digits, '-' and "
            "'.', such as fpga.example.com"
        )
    if not is_text(text) or not isinstance(yaml.safe_load(text), str):  # to kubectl, and to others
        raise SettingsError(
            f"--driver-name {text!r} is no text in YAML: give one with a domain, such as fpga.example.com"
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
