"""Whose driver a file of values is, and what is wrong with those of its own options: as its process would say it at its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...base.text import did_you_mean
from ...driver import Driver, declared, read_options
from ...errors import SettingsError


def driver_beside(values: Path) -> Path | None:
    """The folder of a driver's package that has the file in it, or in ``deploy``, as `dra new` makes it; None where there is none."""
    for folder in values.absolute().parents[:2]:
        if (folder / "driver.py").is_file() or any(folder.glob("src/*/driver.py")):
            return folder
    return None


def faults(driver: type[Driver], given: Mapping[str, str], others: Iterable[str]) -> Iterator[str]:
    """Of the value ``options``, whose names in ``others`` are the framework's. A driver that declares no options may read any variable."""
    own = {f.metadata["env"] for f in declared(driver)}
    known = own | set(others)
    for name in given if own else ():
        if name not in known:
            hint = did_you_mean(name, known) or ": what others read stands in pods.all.env"
            yield f"options.{name}: no option of {driver.__name__} or the framework{hint}"
    try:
        read_options(driver, {}, {name: value for name, value in given.items() if name in own})
    except SettingsError as e:
        for fault in e.faults:
            name = fault.partition(" ")[0]
            yield f"options.{name}: {fault.removeprefix(name).strip()}" if name in own else f"options: {fault}"


def schema(driver: type[Driver] | None, framework: Iterable[str]) -> dict[str, Any]:
    """What JSON Schema can say of the value ``options``, where the ``driver`` declares some: their names, beside those of the framework,
    and what each looks like as text. An empty text is none given.
    """
    own = {f.metadata["env"]: _form(f.metadata) for f in (declared(driver) if driver else ())}
    if not own:
        return {}
    return {"properties": {name: {"type": "string"} for name in sorted(framework)} | own, "additionalProperties": False}


def _form(option: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"type": "string"}
    match option["form"]:
        case str(pattern):
            out["pattern"] = f"^({pattern})?$"
        case tuple(texts):
            out["enum"] = list(dict.fromkeys([*texts, ""]))
    return out | ({"description": option["help"]} if option["help"] else {})
