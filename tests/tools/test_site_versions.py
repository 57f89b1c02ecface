"""The site with versions, built from a repository with tags whose ``make site`` writes one page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.tools.site_versions import build

MAKEFILE = "site:\n\tmkdir -p $(word 2,$(ARGS)) && cp page $(word 2,$(ARGS))/index.html\n"


def _git(folder: Path, *argv: str) -> None:
    author = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *argv], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "-q")
    (folder / "Makefile").write_text(MAKEFILE)
    return folder


def _commit(repository: Path, page: str, *tags: str) -> None:
    (repository / "page").write_text(page)
    _git(repository, "add", ".")
    _git(repository, "commit", "-qm", page)
    for tag in tags:
        _git(repository, "tag", tag)


def test_each_release_has_the_pages_of_its_newest_patch(repository: Path, tmp_path: Path) -> None:
    _commit(repository, "first", "v0.9.0")
    _commit(repository, "patched", "v0.9.1", "nightly")
    _commit(repository, "ten", "v0.10.0", "v0.11.0rc1")
    _commit(repository, "now")
    folder = tmp_path / "pages"
    build(repository, folder)
    pages = {p.parent.name: p.read_text() for p in folder.glob("*/index.html")}
    assert pages == {"0.9": "patched", "0.10": "ten", "dev": "now"}
    assert json.loads((folder / "versions.json").read_text()) == [
        {"version": "0.10", "title": "0.10.0", "aliases": ["latest"]},
        {"version": "0.9", "title": "0.9.1", "aliases": []},
        {"version": "dev", "title": "not released", "aliases": []},
    ]
    assert "url=0.10/" in (folder / "index.html").read_text()
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1


def test_before_the_first_release_the_start_page_leads_to_the_present_commit(repository: Path, tmp_path: Path) -> None:
    _commit(repository, "now")
    build(repository, tmp_path / "pages")
    assert "url=dev/" in (tmp_path / "pages" / "index.html").read_text()
    assert [v["version"] for v in json.loads((tmp_path / "pages" / "versions.json").read_text())] == ["dev"]


def test_a_release_whose_site_cannot_be_built_ends_the_build(repository: Path, tmp_path: Path) -> None:
    (repository / "Makefile").write_text("site:\n\tfalse\n")
    _commit(repository, "broken", "v1.0.0")
    (repository / "Makefile").write_text(MAKEFILE)
    _commit(repository, "now")
    with pytest.raises(subprocess.CalledProcessError):
        build(repository, tmp_path / "pages")
    assert not (tmp_path / "pages" / "versions.json").exists()
