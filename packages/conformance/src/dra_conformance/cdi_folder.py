"""Reads the CDI folder of the suite: its specs, CDI ids that do not resolve, and files that are incomplete for a moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_devkit.cdi.cache import CdiCache
from dra_devkit.cdi.reader import SpecFileError, parse, read_spec
from dra_kubeletplugin.host.machine import file_system_root

_SHOWN = 5  # maximum number of ids in a message
_POLL = 0.0005  # seconds between two searches for incomplete files


class CdiFolder:
    """The folder that the driver gets as CDI_ROOT."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def content(self) -> dict[str, bytes]:
        """Returns the files that a runtime reads, by name."""
        out = {}
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else []:
            if path.suffix in {".json", ".yaml"}:
                with contextlib.suppress(OSError):
                    out[path.name] = path.read_bytes()
        return out

    def cache(self) -> CdiCache:
        """Returns the devices that a runtime finds: those in the folder, and those in the static specs of this machine (HOST_ROOT)."""
        return CdiCache((file_system_root() / "etc/cdi", self.path))

    def _own(self) -> CdiCache:
        return CdiCache((self.path,))

    def names(self) -> set[str]:
        """Returns the names of files and of CDI devices. A file may contain the devices of several claims."""
        return {*self.content(), *self._own().devices}

    def load_errors(self) -> str:
        """Returns why specs cannot be loaded, with the names of their files."""
        errors = self._own().errors
        return "; ".join(f"{Path(path).name}: {text}" for path, texts in errors.items() for text in texts)

    def unresolvable(self, ids: Sequence[str]) -> str:
        """Returns the CDI ids that do not resolve, with the reason. Returns an empty text if all resolve."""
        missing = sorted(set(ids) - set(self.cache().devices))
        if not missing:
            return ""
        known = self._own().devices
        shown = (
            f"CDI_ROOT ({self.path}) has only {', '.join(sorted(known)[:_SHOWN])}"
            if known
            else f"no spec in CDI_ROOT ({self.path})"
        )
        return f"unresolvable: {', '.join(missing)}; {self.load_errors() or shown}"

    def specs(self) -> dict[Path, Mapping[str, Any]]:
        """Returns each spec that can be read, by its path."""
        out: dict[Path, Mapping[str, Any]] = {}
        for name in self.content():
            with contextlib.suppress(SpecFileError, OSError):
                out[self.path / name] = read_spec(self.path / name)
        return out

    def edits_of(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Returns the container edits of the devices, and those of their specs."""
        cache = self.cache()
        out: list[Mapping[str, Any]] = []
        for name in ids:
            if name in cache.devices:
                _, spec, device = cache.devices[name]
                out += [spec.get("containerEdits") or {}, device["containerEdits"]]
        return out

    @contextlib.contextmanager
    def watch_for_partial_files(self) -> Iterator[list[str]]:
        """Reads new files again and again in a thread. The list gets a text for each file that was seen incomplete."""
        found: list[str] = []
        stop = threading.Event()

        def watch() -> None:
            known: dict[str, bytes] = {}
            while not stop.wait(_POLL):
                for name, data in self.content().items():
                    if known.get(name) != data:
                        known[name] = data
                        if fault := _incomplete(name, data):
                            found.append(fault)

        thread = threading.Thread(target=watch, name="partial CDI files", daemon=True)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()


def _incomplete(name: str, data: bytes) -> str:
    if not data.strip():
        return f"{name} was empty"
    try:
        parse(data.decode(errors="replace"))
    except SpecFileError:
        return f"{name} contained only {len(data)} bytes of a document"
    return ""
