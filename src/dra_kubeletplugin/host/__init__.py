"""Reads the machine's hardware from sysfs and kernel events. A described host can replace the real ``/sys``."""

from .machine import Host
from .pci import PciFunction

__all__ = ["Host", "PciFunction"]
