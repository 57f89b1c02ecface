"""The machine: what sysfs and the kernel say. A folder can stand in for the real ``/sys``."""

from .machine import Host
from .pci import PciFunction

__all__ = ["Host", "PciFunction"]
