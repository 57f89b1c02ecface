"""Prints the notes of a release, its section of CHANGELOG.md, or what must be done before the release.

python -m tests.tools.release_notes
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dra_kubeletplugin import __version__

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
_HEADING = re.compile(r"^## (?P<version>\S+), (?P<date>.+)$", re.M)


def notes_of(changelog: str, version: str) -> str:
    """Returns the section of a version, without its heading. Raises ``ValueError`` if there is none or if it has no date."""
    headings = list(_HEADING.finditer(changelog))
    for found, following in zip(headings, [*headings[1:], None], strict=True):
        if found["version"] == version:
            if not re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]):
                raise ValueError(f"{version} is {found['date']!r} in CHANGELOG.md: write the date of the release there")
            return changelog[found.end() : following.start() if following else None].strip() + "\n"
    raise ValueError(
        f"CHANGELOG.md has no section {version!r}: add it, or set the version in the framework's __init__.py"
    )


def main() -> int:
    try:
        print(notes_of(CHANGELOG.read_text(), __version__), end="")
    except ValueError as e:
        print(f"release_notes: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
