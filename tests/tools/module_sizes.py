"""Fails when a module has more than 450 lines and must be split."""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 450


def main() -> int:
    root = Path(__file__).parents[2]
    files = [p for folder in ("src", *root.glob("drivers/*/src")) for p in (root / folder).rglob("*.py")]
    found = [p for p in files if "_proto" not in p.parts]
    large = [(len(p.read_text().splitlines()), p) for p in found]
    for lines, path in sorted(large, reverse=True):
        if lines > LIMIT:
            print(f"{path.relative_to(root)}: {lines} lines, more than {LIMIT}: split it", file=sys.stderr)
    return int(any(lines > LIMIT for lines, _ in large))


if __name__ == "__main__":
    raise SystemExit(main())
