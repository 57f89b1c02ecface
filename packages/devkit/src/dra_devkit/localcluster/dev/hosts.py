"""The hardware of a node: this machine, or a described host whose PCI functions can be added and removed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_devkit.yaml.loader import PlainBuilder
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.host import Host

from ...hosts import described, kernel, schema
from ...yaml import stream


class HostError(ValueError):
    """The hardware cannot be changed as requested. The text contains the reason and the possible values."""


@dataclass
class NodeHost:
    """The hardware of a node. ``description`` is the name or file of a described host's description; empty for this machine."""

    sysfs: Path
    dev: Path
    description: str = ""
    unplugged: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def real(cls, sysfs: Path, dev: Path) -> NodeHost:
        return cls(sysfs, Host(sysfs, dev).dev)

    @classmethod
    def build(cls, folder: Path, description: str) -> NodeHost:
        """Builds a described host in ``folder``. Deletes the previous content of the folder.

        Raises:
            SettingsError: the description is invalid.
        """
        machine = schema.load(described.find(description))
        shutil.rmtree(folder, ignore_errors=True)
        sysfs = described.build(folder, machine)
        return cls(sysfs, Host(sysfs).dev, description)

    @property
    def addresses(self) -> list[str]:
        """Addresses of all present PCI functions."""
        return [fn.address for fn in Host(self.sysfs, self.dev).pci()]

    def plug(self, what: str) -> str:
        """Adds a PCI function and returns its address.

        Args:
            what: the address of an unplugged function, or the description of a new function in YAML.

        Raises:
            HostError: the function cannot be added.
        """
        self._check()
        spec = self.unplugged.get(what) or _function(what, self)
        try:
            described.add_function(self.sysfs, spec)
        except SettingsError as e:
            raise HostError(str(e)) from None
        address = str(spec["address"])
        self.unplugged.pop(address, None)
        return address

    def unplug(self, address: str) -> None:
        """Removes a PCI function with its virtual functions and the devices below it.

        Raises:
            HostError: there is no such function.
        """
        self._check()
        self._need(address)
        function = described.function(self.sysfs, address)
        described.remove_function(self.sysfs, address)
        if function is not None:
            self.unplugged[address] = function

    def write(self, path: str, text: str) -> None:
        """Writes to a file of the host's sysfs. Imitates the kernel's effect.

        Raises:
            HostError: the file is outside sysfs or cannot be written.
        """
        self._check()
        if not (self.sysfs / path).resolve().is_relative_to(self.sysfs.resolve()):
            raise HostError(f"{path} is not below {self.sysfs}")
        try:
            kernel.write(self.sysfs, path, text)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror or e}") from None

    def _check(self) -> None:
        if not self.description:
            raise HostError(
                "the node shows this machine's own hardware, which is never changed: start `dra dev` with --host for a described host"
            )

    def _need(self, address: str) -> None:
        present = self.addresses
        if address not in present:
            raise HostError(f"no PCI function {address!r} on this host, only {', '.join(present) or 'none'}")


def _function(text: str, host: NodeHost) -> Mapping[str, Any]:
    faults: list[str] = []
    document = stream.parse_one(text, "the function's description", faults, PlainBuilder)
    if faults:
        raise HostError("; ".join(faults))
    if document and isinstance(document.value, dict) and "address" in document.value:
        return document.value
    if text.strip() in host.addresses:
        raise HostError(f"{text.strip()} is already present")
    away = (
        f"a function that was unplugged ({', '.join(host.unplugged)})"
        if host.unplugged
        else "a function that was unplugged (none was)"
    )
    raise HostError(
        f"{text.strip()!r} is neither {away} nor the description of a function with address, vendor and device"
    )
