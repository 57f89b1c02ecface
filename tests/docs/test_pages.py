"""Each page is in the site's menu, and every link has a target. `make site` checks the same for the pages of the API."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin import cli

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"```.*?```", re.DOTALL)
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
PAGES = sorted(
    p
    for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("drivers/*/*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("packages/*/*.md")]
)  # fmt: skip


_COMMAND = re.compile(r"`dra ([^`]+)`|^(?: {4}|\$ )dra ([^\n|;&>]+)", re.MULTILINE)


def unexpected_words(command: str) -> list[str]:
    """Returns the words of a command of ``dra`` that its parser does not accept. Ignores a form with placeholders."""
    if "[" in command or "..." in command:
        return []
    try:
        words = shlex.split(command.removesuffix("\\"), comments=True)
    except ValueError:  # The command continues on the next line.
        return []
    parsers = cli.commands()
    length = next((n for n in (2, 1) if " ".join(words[:n]) in parsers), 0)
    if not length or cli.COMMANDS[words[0]].driver_options:  # A driver adds options.
        return []
    rest: list[str] = []
    with contextlib.suppress(SystemExit):  # --help, or an option without its value in a sentence
        _, rest = parsers[" ".join(words[:length])].parse_known_args(words[length:])
    return rest


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub and MkDocs create for the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", h)).strip().lower().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_has_an_existing_target(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


class Settings(yaml.SafeLoader):
    """Loads MkDocs' file and ignores its tags."""


Settings.add_multi_constructor("", lambda loader, suffix, node: None)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_has_the_arguments_that_its_parser_accepts(page: Path) -> None:
    commands = [a or b for a, b in _COMMAND.findall(page.read_text())]
    assert {c: words for c in commands if (words := unexpected_words(c))} == {}


def pages_of(menu: Iterable[Any]) -> Iterator[str]:
    """Yields the pages of a menu: its entries are pages, with or without a title, or sections."""
    for entry in menu:
        below = entry if isinstance(entry, str) else next(iter(entry.values()))
        yield from [below] if isinstance(below, str) else pages_of(below)


def test_every_page_is_in_the_menu_once() -> None:
    menu = yaml.load((ROOT / "mkdocs.yml").read_text(), Settings)["nav"]  # noqa: S506 a subclass of SafeLoader
    assert sorted(pages_of(menu)) == sorted(str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/**/*.md"))


def test_the_settings_of_the_site_have_no_duplicate_key() -> None:
    """For a duplicate key, YAML uses the last value without a warning. A second list of hooks would disable the first one."""
    top = yaml.compose((ROOT / "mkdocs.yml").read_text(), Settings)
    assert isinstance(top, yaml.MappingNode)
    keys = [key.value for key, _ in top.value]
    assert sorted(keys) == sorted(set(keys))


def test_every_attack_of_the_security_page_names_a_test_that_exists() -> None:
    page = (ROOT / "docs/security.md").read_text()
    rows = page.partition("## Who can do what to whom")[2].partition("What a neighbour can still do")[0].splitlines()
    attacks = [row for row in rows if row.startswith("| ") and not row.startswith("| who |")]
    assert len(attacks) > 20
    for row in attacks:
        test_paths = re.findall(r"`((?:packages/\w+/)?tests/[\w/]+\.py)`", row)
        assert test_paths, f"no test in: {row}"
        for path in test_paths:
            assert (ROOT / path).is_file(), path
