"""What commands that ask a cluster share: which cluster, how it is read, and how answers are written."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..kube import ApiConfig, KubeClient, load_config
from ..kube.kubeconfig import remove_files

T = TypeVar("T")
_TIMEOUT = 30.0  # seconds for one page of a list
HOME = Path("~/.kube/config")


def config_of(args: argparse.Namespace) -> ApiConfig:
    """Raises :class:`SettingsError`."""
    named = args.kubeconfig or os.environ.get("KUBECONFIG", "")
    if not named and HOME.expanduser().is_file():
        named = str(HOME.expanduser())
    return load_config(named, args.context)


def ask(config: ApiConfig, question: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Asks a cluster, and leaves nothing behind. Raises :class:`DraError`."""

    async def asked() -> T:
        async with KubeClient(config, _TIMEOUT) as client:
            return await question(client)

    try:
        return asyncio.run(asked())
    finally:
        remove_files()


def encoded(answer: object, form: str) -> str:
    """A typed answer as JSON or YAML, one field a key; empty fields are there too."""
    plain: Any = msgspec.to_builtins(answer)
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"
    import yaml

    shown: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return shown


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


class Progress:
    """One line on standard error that changes, where that is a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._width = 0

    def __call__(self, text: str) -> None:
        if self._shown:
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)

    def done(self) -> None:
        if self._shown and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0
