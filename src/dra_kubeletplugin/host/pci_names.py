"""Human-readable names of PCI ids, from the file pci.ids of the package ``pci.ids`` (Debian) or hwdata, if one is installed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path

PATHS = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
_HEAD = re.compile(rb"\n[^\t#\n]")  # the next line without indentation


class PciNames:
    """Looks up names in the pci.ids file. Keeps only the results in memory, because the file has 1.5 MB."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._cache: dict[tuple[str, str], str | None] = {}

    @classmethod
    def load(cls, paths: Iterable[Path] = PATHS) -> PciNames:
        return cls(next((p for p in paths if p.is_file()), None))

    def vendor(self, vendor: int) -> str | None:
        return self._lookup(f"{vendor:04x}", "")

    def device(self, vendor: int, device: int) -> str | None:
        return self._lookup(f"{vendor:04x}", f"{device:04x}")

    def class_name(self, class_code: int) -> str | None:
        base, sub = f"C {class_code >> 16:02x}", f"{class_code >> 8 & 0xFF:02x}"
        return self._lookup(base, sub) or self._lookup(base, "")

    def _lookup(self, head: str, sub: str) -> str | None:
        if self.path is None:
            return None
        key = (head, sub)
        if key not in self._cache:
            try:
                with self.path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    self._cache[key] = _search(content, head.encode(), sub.encode())
            except (OSError, ValueError):  # ValueError: mmap rejects an empty file
                self._cache[key] = None
        return self._cache[key]


def _search(content: mmap.mmap, head: bytes, sub: bytes) -> str | None:
    """Finds the name of a vendor or class (``head``), or of a device or subclass (``sub``), whose line begins with a tab."""
    mark = b"\n" + head + b"  "
    at = content.find(mark)
    if at < 0:
        return None
    if not sub:
        return _line(content, at + len(mark))
    entry = b"\n\t" + sub + b"  "
    end = _HEAD.search(content, at + 1)
    found = content.find(entry, at, end.start() + 1 if end else len(content))
    return _line(content, found + len(entry)) if found >= 0 else None


def _line(content: mmap.mmap, start: int) -> str:
    end = content.find(b"\n", start)
    return content[start : end if end >= 0 else len(content)].decode(errors="replace").strip()
