"""Writes the files, links and device nodes of a described host."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from .model import Content


def write_file(path: Path, content: Content) -> None:
    """Writes a file with a newline at its end, and creates its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = str(int(content) if isinstance(content, bool) else content)
    path.write_text(text if text.endswith("\n") else f"{text}\n")


def remove_file(folder: Path, name: str) -> None:
    """Removes a file below ``folder``, if it exists, and the folders that are empty without it."""
    path = folder / name
    path.unlink(missing_ok=True)
    for above in path.parents:
        if above == folder or not above.is_dir() or any(above.iterdir()):
            return
        above.rmdir()


def replace_file(root: Path, path: Path, text: str) -> None:
    """Replaces the file atomically: as with a kernel attribute, a reader sees the old or the new value, never a part of it."""
    temporary = root / f".{uuid.uuid4().hex}"  # a hidden name in the root, which no reader treats as an attribute
    temporary.write_text(text)
    temporary.replace(path.resolve())


def remove(path: Path) -> None:
    """Removes a file or link, or a folder with everything in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def replace_link(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def write_device_node(root: Path, name: str, numbers: str) -> None:
    """Writes a device node of the host's ``dev``: a file with its type and numbers, because mknod needs root.

    Numbers alone are those of a character device.
    """
    write_file(root / "dev" / name, numbers if numbers[0] in "bc" else f"c {numbers}")


def device_numbers(path: Path) -> tuple[str, int, int] | None:
    """Returns type (``b`` or ``c``), major and minor of a described host's device node; None if ``path`` is not such a node."""
    if not path.is_file():
        return None
    kind, _, numbers = path.read_text().partition(" ")
    major, _, minor = numbers.strip().partition(":")
    return (kind, int(major), int(minor)) if kind in {"b", "c"} else None
