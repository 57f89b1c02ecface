"""Builds the documentation of the present commit and of the newest patch of each release, for the version menu of the site.

python -m tests.tools.site_versions FOLDER
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DEVELOPMENT = "dev"
_START_PAGE = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">{0}</a>\n'
)


def releases_of(tags: list[str]) -> dict[str, str]:
    """Returns the tag of the newest patch of each release by its version ``X.Y``, the newest release first. Other tags do not count."""
    found = (re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)", tag) for tag in tags)
    newest: dict[str, str] = {}
    for major, minor, patch in sorted((tuple(map(int, tag.groups())) for tag in found if tag), reverse=True):
        newest.setdefault(f"{major}.{minor}", f"v{major}.{minor}.{patch}")
    return newest


def build(repository: Path, folder: Path) -> None:
    """Writes each version's site into a folder of its name, the list for the version menu, and a start page that leads to the newest release.

    Raises:
        subprocess.CalledProcessError: ``make site`` or git failed. Its output is on this process's output.
    """
    tags = subprocess.run(["git", "tag"], cwd=repository, check=True, capture_output=True, text=True).stdout.split()
    releases = releases_of(tags)
    newest = next(iter(releases), DEVELOPMENT)
    _site(repository, folder / DEVELOPMENT)
    for version, tag in releases.items():
        with tempfile.TemporaryDirectory() as checkout:
            subprocess.run(["git", "worktree", "add", "--quiet", "--detach", checkout, tag], cwd=repository, check=True)
            try:
                _site(Path(checkout), folder / version)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=repository, check=True)
    titles = {**{version: tag.removeprefix("v") for version, tag in releases.items()}, DEVELOPMENT: "not released"}
    menu = [{"version": v, "title": t, "aliases": ["latest"] if v == newest else []} for v, t in titles.items()]
    (folder / "versions.json").write_text(json.dumps(menu, indent=2) + "\n")
    (folder / "index.html").write_text(_START_PAGE.format(newest))


def _site(checkout: Path, folder: Path) -> None:
    argv = ["make", "--no-print-directory", "-C", str(checkout), "site", f"ARGS=--site-dir {folder.resolve()}"]
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    try:
        build(Path(__file__).parents[2], Path(sys.argv[1]))
    except IndexError:
        raise SystemExit("usage: python -m tests.tools.site_versions FOLDER") from None
    except subprocess.CalledProcessError as e:
        raise SystemExit(f"site_versions: {' '.join(map(str, e.cmd))} failed with exit code {e.returncode}") from None
