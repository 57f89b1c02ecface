"""Fails when a module has more than 450 lines and must be split."""

from __future__ import annotations

import sys

from tests.tools.tree import ROOT, modules

LIMIT = 450


def main() -> int:
    found = [*modules(), *(p for folder in ROOT.glob("drivers/*/src") for p in folder.rglob("*.py"))]
    large = [(len(p.read_text().splitlines()), p) for p in found]
    for lines, path in sorted(large, reverse=True):
        if lines > LIMIT:
            print(f"{path.relative_to(ROOT)}: {lines} lines, more than {LIMIT}: split it", file=sys.stderr)
    return int(any(lines > LIMIT for lines, _ in large))


if __name__ == "__main__":
    raise SystemExit(main())
