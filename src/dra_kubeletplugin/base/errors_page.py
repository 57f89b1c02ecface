"""Renders ``docs/errors.md``, the page that lists all errors."""

from __future__ import annotations

from .. import errors
from ..errors import DraError


def catalogue() -> list[type[DraError]]:
    """Returns all error classes of the errors module, sorted by code."""
    found: list[type[DraError]] = []
    queue: list[type[DraError]] = [DraError]
    while queue:
        cls = queue.pop()
        if cls.__module__ == errors.__name__:  # classes of other modules only add data
            found.append(cls)
        queue.extend(cls.__subclasses__())
    return sorted(found, key=lambda c: c.code)


def page() -> str:
    """Returns the page in Markdown."""
    lines = [
        "# Errors",
        "",
        "Generated from `src/dra_kubeletplugin/errors.py` by `make docs`. In a pod's event, the reason comes first and the",
        "code last. The text is the same at each attempt. Search the plugin's log for this text: the line has the fields",
        "`error_code` and `claim`, and an operation id. All other lines of the same call have the same operation id.",
        "",
        "| code | reason | class | what to do |",
        "|---|---|---|---|",
    ]
    lines += [f"| {c.code} | `{c.reason}` | `{c.__name__}` | {c.help} |" for c in catalogue()]
    return "\n".join(lines) + "\n"
