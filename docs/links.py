"""A hook of MkDocs: on the site, links to files outside docs/ lead to GitHub. In the pages they are relative paths, as on GitHub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/dra-kubeletplugin/dra-kubeletplugin"
_LINK = re.compile(r"\]\((\.\.?/[^)\s#]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    folder = Path(page.file.abs_src_path).parent

    def outward(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[1]))
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]  # MkDocs resolves these links, and reports wrong links
        kind = "tree" if target.is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target.relative_to(ROOT)}{match[2] or ''})"

    return _LINK.sub(outward, markdown)
