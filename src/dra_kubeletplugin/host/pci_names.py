"""Human names of PCI ids, from the pci.ids database where Debian's ``pci.ids`` (or hwdata) is installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PATHS = (Path("/usr/share/misc/pci.ids"), Path("/usr/share/hwdata/pci.ids"))


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
            self._found[key] = self._scan(head, sub)
        return self._found[key]

    def _scan(self, head: str, sub: str) -> str | None:
        """One pass over the file: a head at the margin, its entries behind one tab."""
        assert self.path is not None
        inside = False
        with self.path.open(encoding="utf-8", errors="replace") as f:
            for line in f:
                if line[:1] in {"#", "\n"}:
                    continue
                if not line.startswith("\t"):
                    if inside:
                        return None
                    inside = line.startswith(head + "  ")
                    if inside and not sub:
                        return line[len(head) :].strip()
                elif inside and line.startswith(f"\t{sub}  "):
                    return line[1 + len(sub) :].strip()
        return None
