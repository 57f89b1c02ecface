"""Hooks of MkDocs: links to files outside docs/ lead to GitHub, each name of the API gets a page, and the header shows the version."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\((\.\.?/[^)\s#]*)(#[^)\s]*)?\)")
_LISTED = re.compile(r"^- \[`(\w+)`\]\[([\w.]+)\.\1\]", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_API_PAGE = """\
# {name}

From `{module}`; [all names](../api.md).

::: {module}.{name}
"""


def _listed() -> list[tuple[str, str]]:
    """Returns module and name of each name that docs/api.md lists."""
    return [(module, name) for name, module in _LISTED.findall((ROOT / "docs" / "api.md").read_text())]


def _page_of(module: str, name: str) -> str:
    return f"api/{module}.{name}.md"


def on_config(config: Any) -> Any:
    found = _VERSION.search((ROOT / "src" / "dra_kubeletplugin" / "__init__.py").read_text())
    assert found
    config.extra["release"] = found[1]
    by_module: dict[str, list[dict[str, str]]] = {}
    for module, name in _listed():
        by_module.setdefault(module, []).append({name: _page_of(module, name)})
    api = [{"All names": "api.md"}, *({module: pages} for module, pages in by_module.items())]
    config.nav = _replaced(config.nav, "api.md", {"Python API": api})
    return config


def _replaced(nav: Any, page: str, section: Any) -> Any:
    if isinstance(nav, dict):
        return {title: _replaced(below, page, section) for title, below in nav.items()}
    return (
        [_replaced(each, page, section) for each in nav] if isinstance(nav, list) else section if nav == page else nav
    )


def on_files(files: Any, *, config: Any) -> Any:
    for module, name in _listed():
        text = _API_PAGE.format(module=module, name=name)
        files.append(File.generated(config, _page_of(module, name), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    # For common words such as "device", the search shows concepts and guides before the docstrings of the API.
    page.meta["search"] = {
        "boost": {"guides": 4, "concepts.md": 8, "api": 0.25}.get(page.file.src_uri.partition("/")[0], 1)
    }
    if page.file.abs_src_path is None:
        return markdown  # a page of the API
    folder = Path(page.file.abs_src_path).parent

    def outward(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[1]))
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]  # MkDocs resolves these links, and reports wrong links
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{target.relative_to(ROOT)}{match[2] or ''})"

    return _LINK.sub(outward, markdown)
