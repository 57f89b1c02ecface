"""Finds the driver package of a values file. Checks values of the driver's options with the rules of the driver's process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.settings.values import OptionFault
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.driver import Driver, declared, read_options
from dra_kubeletplugin.errors import SettingsError

from ...yaml.manifests import PlacedText


def driver_beside(values: Path) -> Path | None:
    """Returns the folder of the driver package that contains the values file, directly or in a subfolder such as ``deploy``.

    Returns None if neither folder is a driver package.
    """
    for folder in values.absolute().parents[:2]:
        if (folder / "driver.py").is_file() or any(folder.glob("src/*/driver.py")):
            return folder
    return None


def option_errors(driver: type[Driver], option_texts: Mapping[str, str], others: Iterable[str]) -> Iterator[PlacedText]:
    """Yields the errors in the value ``options``.

    If the driver declares no options, it may read any variable, so an unknown name is not an error.

    Args:
        others: the names of the framework's options.
    """
    own = {f.metadata["env"] for f in declared(driver)}
    known = own | set(others)
    for name in option_texts if own else ():
        if name not in known:
            hint = did_you_mean(name, known) or ": set variables for other programs in pods.all.env"
            yield PlacedText(f"options.{name}", f"not an option of {driver.__name__} or of the framework{hint}")
    try:
        read_options(driver, {}, {name: value for name, value in option_texts.items() if name in own})
    except SettingsError as e:
        for fault in e.faults:
            if isinstance(fault, OptionFault):
                yield PlacedText(f"options.{fault.env}", fault.problem)
            else:
                yield PlacedText("options", fault)


def options_schema(driver: type[Driver] | None, framework: Iterable[str]) -> dict[str, Any]:
    """Returns the JSON Schema of the value ``options``: the allowed names and the form of each value.

    An empty text means that the option is not set. Returns {} if the driver declares no options.
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
