"""A copy of the sources in which a new release or a new field is added as ``docs/kubernetes-release.md`` describes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/kubernetes-release.md"
TABLE = "src/dra_kubeletplugin/resourceapi/fields.toml"
SOURCES = ("src", "packages/devkit/src", "packages/tools/src")


class ChangedTree:
    """The copy. Knows which files were changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed: set[str] = set()
        for source in SOURCES:
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        assert old in text, f"{path} lacks {old!r}"
        (self.folder / path).write_text(text.replace(old, new, 1))
        self.changed.add(path)

    def add_rows(self, block: str) -> None:
        """Adds the rows of a block of the page to their sections of the table. A row replaces the row of its section with the same name.

        A block without a section replaces the only row with this name.
        """
        section = ""
        for line in filter(None, block.splitlines()):
            if line.startswith("["):
                section = line
                continue
            text, name = (self.folder / TABLE).read_text(), line.partition(" = ")[0]
            rows = re.search(rf"(?ms)^{re.escape(section)}.*?\n\n" if section else "(?s).*", text)
            assert rows is not None, f"{TABLE} has no section {section}"
            if known := re.search(rf"(?m)^{re.escape(name)} = .*\n", rows[0]):
                self.replace(TABLE, rows[0], rows[0].replace(known[0], f"{line}\n"))
            else:
                self.replace(TABLE, rows[0], f"{rows[0][:-1]}{line}\n\n")

    def run(self, code: str) -> None:
        path = os.pathsep.join(str(self.folder / source) for source in SOURCES)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def blocks() -> list[str]:
    """Returns the rows that the page adds: of the release, of a changed gate, and of a field."""
    found = re.findall(r"(?ms)^( *)```toml\n(.*?)^ *```", PAGE.read_text())
    return [re.sub(rf"(?m)^{indent}", "", block) for indent, block in found]
