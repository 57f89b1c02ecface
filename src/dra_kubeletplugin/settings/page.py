"""The page of the documentation that lists all options: ``make docs`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

from .node import Settings
from .roles import NODE_ONLY, WEBHOOK_OPTIONS, ControllerSettings, WebhookSettings


def page() -> str:
    """The Markdown page that lists all options."""
    lines = ["# Options", "", "Generated from `src/dra_kubeletplugin/settings` by `make docs`.", ""]
    lines += _table(fields(Settings))
    both = ", ".join(f"`{f.metadata['flag']}`" for f in fields(Settings) if f.name not in NODE_ONLY)
    known = {f.name for f in fields(Settings)}
    lines += ["", "## Controller", "", f"`dra controller` takes {both}, and:", ""]
    lines += _table([f for f in fields(ControllerSettings) if f.name not in known])
    own = ", ".join(f"`{f.metadata['flag']}`" for f in fields(Settings) if f.name in WEBHOOK_OPTIONS)
    lines += ["", "## Webhook", "", f"`dra webhook` takes {own}, and:", ""]
    lines += _table([f for f in fields(WebhookSettings) if f.name not in known])
    return "\n".join(lines) + "\n"


def _table(options: Iterable[Field[Any]]) -> list[str]:
    out = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for f in options:
        default = f"{f.default:g}s" if isinstance(f.default, float) else str(f.default)
        out.append(f"| `{f.metadata['flag']}` | `{f.metadata['env']}` | `{default or ' '}` | {f.metadata['help']} |")
    return out
