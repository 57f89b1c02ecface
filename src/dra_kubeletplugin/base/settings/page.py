"""Renders the documentation page that lists all options; ``make docs`` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from .node import Settings
from .roles import ControllerSettings, WebhookSettings


def page() -> str:
    """Returns the page in Markdown."""
    lines = [
        "# Options",
        "",
        "Generated from `src/dra_kubeletplugin/base/settings` by `make docs`. A driver may have "
        "[options of its own](drivers.md#options-of-your-own): `dra run DRIVER --help` lists them too.",
        "",
    ]
    lines += _table(Settings.options())
    for kind, title, command in (
        (ControllerSettings, "Controller", "controller"),
        (WebhookSettings, "Webhook", "webhook"),
    ):
        shared = [f for f in kind.options() if f in Settings.options()]
        named = ", ".join(f"`{f.metadata['flag']}`" for f in shared)
        lines += ["", f"## {title}", "", f"`dra {command}` takes {named}, and:", ""]
        lines += _table([f for f in kind.options() if f not in shared])
    return "\n".join(lines) + "\n"


def _table(options: Iterable[Field[Any]]) -> list[str]:
    out = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for f in options:
        default = f"{f.default:g}s" if isinstance(f.default, float) else str(f.default)
        out.append(f"| `{f.metadata['flag']}` | `{f.metadata['env']}` | `{default or ' '}` | {f.metadata['help']} |")
    return out
