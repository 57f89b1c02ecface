"""Human names of PCI ids, from the pci.ids database where Debian's ``pci.ids`` (or hwdata) is installed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path

PATHS = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))
_HEAD = re.compile(rb"\n[^\t#\n]")  # the next line at the margin


class PciNames:
    """Looks names up in the file; keeps only what was asked for, because the whole is 1.5 MB of text."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._found: dict[tuple[str, str], str | None] = {}

    @classmethod
    def load(cls, paths: Iterable[Path] = PATHS) -> PciNames:
        return cls(next((p for p in paths if p.is_file()), None))

    def vendor(self, vendor: int) -> str | None:
        return self._look(f"{vendor:04x}", "")

    def device(self, vendor: int, device: int) -> str | None:
        return self._look(f"{vendor:04x}", f"{device:04x}")

    def class_name(self, class_code: int) -> str | None:
        base, sub = f"C {class_code >> 16:02x}", f"{class_code >> 8 & 0xFF:02x}"
        return self._look(base, sub) or self._look(base, "")

    def _look(self, head: str, sub: str) -> str | None:
        if self.path is None:
            return None
        key = (head, sub)
        if key not in self._found:
            try:
                with self.path.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    self._found[key] = _search(content, head.encode(), sub.encode())
            except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
                self._found[key] = None
        return self._found[key]


def _search(content: mmap.mmap, head: bytes, sub: bytes) -> str | None:
    """A head at the margin, its entries behind one tab, theirs behind two."""
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
