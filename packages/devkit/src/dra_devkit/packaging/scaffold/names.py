"""Checks the name of a new driver, and derives other names from it: of its Python package, class, image and Kubernetes objects."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from dra_kubeletplugin import __version__
from dra_kubeletplugin.base.settings import DNS_SUBDOMAIN, MAX_DRIVER_NAME
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.base.yaml import is_text
from dra_kubeletplugin.errors import SettingsError

FEATURES = ("partitions", "shared-step", "status", "health")
"""The features of ``--with``. Templates have sections for them."""
MAX_NAME = 32
"""The maximum number of characters. It is low because names of objects begin with this name: see ``manifests/source/parameters.yaml``."""
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PCI_ID = re.compile(r"(0x)?([0-9a-f]{4})")
# Names of modules and distributions that conflict with a new package of the same name: our packages, their dependencies, and the tools
# that test, check and build a driver. The list is fixed, because `dra new` may run where few of them are installed.
_RESERVED = {
    "cffi",
    "cryptography",
    "dra",
    "dra_conformance",
    "dra_devkit",
    "dra_kubeletplugin",
    "dra_tools",
    "google",
    "google_re2",
    "grpc",
    "grpc_health",
    "grpcio",
    "grpcio_health_checking",
    "h11",
    "hatchling",
    "httptools",
    "jsonpatch",
    "jsonpatch_cli",
    "jsonpatch_stubs",
    "jsonpointer",
    "jsonpointer_stubs",
    "kubernetes",
    "msgspec",
    "prometheus_client",
    "protobuf",
    "pycparser",
    "pyudev",
    "pyyaml",
    "re2",
    "shtab",
    "textual",
    "typing_extensions",
    "wsproto",
    "yaml",
    "ast_serialize",
    "iniconfig",
    "librt",
    "mypy",
    "mypy_extensions",
    "mypyc",
    "packaging",
    "pathspec",
    "pluggy",
    "py",
    "pygments",
    "pytest",
    "ruff",
    "tomlkit",
    "trove_classifiers",
    "conftest",
    "pip",
    "setuptools",
    "src",
    "test",
    "tests",
    "wheel",
}


@dataclass(frozen=True)
class Names:
    """The names of one package, and its features: names in :data:`FEATURES`.

    ``vendor`` and ``device`` are PCI ids, four hex digits each; empty unless ``kind`` is ``pci``.
    """

    kind: str
    name: str
    driver_name: str
    vendor: str = ""
    device: str = ""
    features: tuple[str, ...] = ()

    @property
    def sections(self) -> frozenset[str]:
        """The conditions of sections that are true: the features, and ``privileged`` for a driver that writes to sysfs."""
        writes_sysfs = "shared-step" in self.features and self.kind != "sdk"
        return frozenset({*self.features, "privileged"} if writes_sysfs else self.features)

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
            "device": self.device.upper(),
            "requires": f">={__version__},<{major}.{minor + 1}",
            "valid_parameters": '["tests/parameters/valid.yaml"]' if self.kind == "sdk" else "[]",
            "invalid_parameters": '["tests/parameters/invalid.yaml"]' if self.kind == "sdk" else "[]",
        }


def module_of(name: str) -> str:
    return name.replace("-", "_")


def check_name(name: str) -> str:
    """Returns ``name``.

    Raises :class:`SettingsError` unless it is valid as a folder, a Python package, an image and a DNS label.
    """
    if not _NAME.fullmatch(name) or "--" in name or len(name) > MAX_NAME:
        suggestion = near_name(name)
        hint = suggestion if suggestion and suggestion != name and not _conflict(suggestion) else "acme-fpga"
        raise SettingsError(
            f"NAME {name!r}: use at most {MAX_NAME} lower case letters, digits and single '-', and begin with a letter, such as {hint}"
        )
    if where := _conflict(name):
        raise SettingsError(f"NAME {name!r} has another meaning in {where}: choose another name, such as {name}-driver")
    return name


def near_name(name: str) -> str:
    """Returns a valid name that resembles ``name``, such as ``nimbus-n4`` for ``Nimbus_N4``; empty if no letter remains."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_name).lstrip("-0123456789")[:MAX_NAME].rstrip("-")


def _conflict(name: str) -> str:
    """Returns "Python" or "YAML" if the name already has another meaning there; empty otherwise."""
    module = module_of(name)
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in _RESERVED:
        return "Python"
    return "" if is_text(name) else "YAML"


def check_driver_name(text: str) -> str:
    """Returns ``text``.

    Raises :class:`SettingsError` unless it is a valid driver name for Kubernetes and a string in YAML.
    """
    if len(text) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(text):
        raise SettingsError(
            f"--driver-name {text!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} bytes: lower case letters, digits, '-' and "
            "'.', such as fpga.example.com"
        )
    # Two checks, because the YAML parsers of kubectl and PyYAML have different rules.
    if not is_text(text) or not isinstance(yaml.safe_load(text), str):
        raise SettingsError(
            f"--driver-name {text!r} is not text in YAML: use a name with a domain, such as fpga.example.com"
        )
    return text


def check_features(text: str) -> tuple[str, ...]:
    """Returns the features of a list with commas, each once. Raises :class:`SettingsError` for an unknown feature."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FEATURES:
            raise SettingsError(f"--with {name!r} is not one of {', '.join(FEATURES)}{did_you_mean(name, FEATURES)}")
    return tuple(name for name in FEATURES if name in names)


def check_vendor(text: str) -> str:
    """Returns the vendor id as four hex digits. Raises :class:`SettingsError` if it is invalid."""
    return _pci_id(text, "--vendor-id", "vendor", "10ee", {"0000", "ffff"})


def check_device(text: str) -> str:
    """Returns the device id as four hex digits. Raises :class:`SettingsError` if it is invalid."""
    return _pci_id(text, "--device-id", "device", "5000", {"ffff"})


def _pci_id(text: str, flag: str, what: str, example: str, none: set[str]) -> str:
    """Returns the id as four hex digits. Raises :class:`SettingsError` if it is invalid, or in ``none``, the ids that no function has."""
    found = _PCI_ID.fullmatch(text.lower())
    if not found or found[2] in none:
        raise SettingsError(
            f"{flag} {text!r} is not a PCI {what} id: use four hex digits, such as {example}; `lspci -nn` shows the id"
        )
    return found[2]
