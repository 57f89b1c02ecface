"""A driver's own options: the declaration in its class, and their values from flags, environment and defaults.

``options`` of a driver is an instance of a frozen dataclass. Its fields are the options, its values are their defaults, and a text in
``Annotated`` is the description in ``--help``. As with the framework's options, ``shelf_count`` becomes ``--shelf-count`` and
``SHELF_COUNT``::

    @dataclass(frozen=True)
    class NpuOptions:
        shelf_count: Annotated[int, "how many shelves the chassis has"] = 4

    class Npu(Driver):
        options = NpuOptions()  # self.options.shelf_count
"""

from __future__ import annotations

import builtins
import dataclasses
import os
import re
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import Field
from typing import Any

from ..base.settings import ControllerSettings, Settings, WebhookSettings
from ..base.settings.values import as_text, values_of
from ..base.settings.values import option as setting
from ..base.text import did_you_mean
from ..errors import DriverError, SettingsError, printable, shown
from .diagnostics.author_errors import author_code
from .option_types import PLAIN_TYPES, option_type

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
COMMAND_FLAGS = frozenset(
    {
        "api_address",
        "api_cert_file",
        "api_private_key_file",
        "apply",
        "containers",
        "controller",
        "describe_file",
        "describe_host",
        "feature_gates",
        "gates",
        "help",
        "host",
        "image",
        "kubernetes",
        "nodes",
        "no_reload",
        "output",
        "runtime_config",
        "state_dir",
        "version",
    }
)
"""Flags, other than settings, of the commands that accept a driver's options."""
_MACHINE = frozenset(
    {
        "DISPLAY",
        "EDITOR",
        "HOME",
        "HOSTNAME",
        "LANG",
        "LOGNAME",
        "MAIL",
        "PATH",
        "PWD",
        "SHELL",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
)
_OTHERS = ("DRA_", "KUBERNETES_", "LC_", "LD_", "PYTHON", "SSL_")  # prefixes of variables that other programs read


def declared(cls: type) -> list[Field[Any]]:
    """Returns the options of a driver's class as settings fields; an empty list if it declares none.

    Raises:
        DriverError: a field that cannot be an option; the message names the field and the rule.
    """
    defaults = getattr(cls, "options", None)
    if defaults is None:
        return []
    kind = type(defaults)
    where = f"{cls.__name__}.options"
    if isinstance(defaults, type) and dataclasses.is_dataclass(defaults):
        raise DriverError(f"{where} is the class {defaults.__name__}: use an instance, {defaults.__name__}()")
    if not dataclasses.is_dataclass(defaults):
        raise DriverError(
            f"{where} is {shown(defaults)}: set it to an instance of a frozen dataclass whose fields are the driver's options"
        )
    if not kind.__dataclass_params__.frozen:
        raise DriverError(f"{kind.__name__} can be changed while the driver runs: write @dataclass(frozen=True)")
    hints = _hints(kind)
    for name, value in vars(kind).items():
        if name not in hints and not name.startswith("_") and type(value) in PLAIN_TYPES:
            raise DriverError(
                f"{kind.__name__}.{name} has no type, so it cannot be set: write `{name}: {type(value).__name__} = ...`"
            )
    name = str(getattr(cls, "name", ""))
    found = [_declared(f, kind, hints[f.name], getattr(defaults, f.name), name) for f in dataclasses.fields(defaults)]
    for f in found:
        if f.name.startswith("no_") and any(o.name == f.name[3:] and o.metadata["holds"](False) for o in found):
            raise DriverError(
                f"{kind.__name__}.{f.name}: {f.metadata['flag']} already switches `{f.name[3:]}` off: remove the field"
            )
    return found


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as e:  # get_type_hints evaluates annotations, which may raise anything
        there = [*vars(sys.modules.get(kind.__module__, builtins)), *dir(builtins)]
        hint = did_you_mean(e.name, there) if isinstance(e, NameError) and e.name else ""
        raise DriverError(f"the types of {kind.__name__} cannot be read: {printable(e)}{hint}") from None


def _declared(f: Field[Any], kind: type, hint: Any, default: object, driver: str) -> Field[Any]:
    where = f"{kind.__name__}.{f.name}"
    if not _NAME.fullmatch(f.name) or not f.init:
        raise DriverError(
            f"{where} cannot become a flag: use lower case and single _ in the name, and do not set `init`"
        )
    flag, env = f"--{f.name.replace('_', '-')}", f.name.upper()
    if owner := _owner_of(f.name, flag, env):
        own = f"{driver.partition('.')[0].replace('-', '_') or 'my'}_{f.name}"
        raise DriverError(f"{where}: {owner}: rename it, for example to {own}")
    help_text = ""
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        help_text = next((note for note in notes if isinstance(note, str)), "")
    try:
        of = option_type(hint)
    except ValueError as e:
        raise DriverError(f"{where} is {e}") from None
    if not of.holds(default):
        raise DriverError(f"{where} = {shown(default)} is {of.wrong}: the default must match the field's type")
    out: Field[Any] = setting(
        env, default, help_text, of.read, flag=flag, holds=of.holds, wrong=of.wrong, metavar=of.metavar, form=of.form
    )
    out.name = f.name
    return out


def _owner_of(name: str, flag: str, env: str) -> str:
    """Returns a sentence with the owner of the flag or the variable; empty if both are free."""
    own_options = [f for role in (Settings, ControllerSettings) for f in role.options()]
    if name in COMMAND_FLAGS or any(flag == f.metadata["flag"] for f in own_options):
        return f"{flag} is an option of `dra` itself"
    # The webhook's pod has the driver's options too.
    if any(env == f.metadata["env"] for f in (*own_options, *WebhookSettings.options())):
        return f"{env} is a variable of the framework"
    if env in _MACHINE or env.startswith(_OTHERS):
        return f"{env} is a variable that other programs set"
    return ""


def read_options(cls: type, given: object = None, environ: Mapping[str, str] | None = None) -> object:
    """Reads the options of one process. Returns None if the class declares none.

    Args:
        cls: the driver's class.
        given: values by name, as command-line text or typed. A missing option comes from the environment or has its default.
            Alternatively an instance of the options' class, which is used unchanged.
        environ: the environment variables; by default, the variables of this process.

    Raises:
        SettingsError: options are invalid; the message contains all faults.
        DriverError: :func:`declared` finds a fault of the class.
    """
    options = declared(cls)
    defaults: Any = getattr(cls, "options", None)
    if given is not None and not isinstance(given, Mapping):
        if defaults is None or not isinstance(given, type(defaults)):
            wanted = (
                f"pass {type(defaults).__name__}(...), or a mapping of names to values"
                if options
                else f"{cls.__name__} declares no options"
            )
            raise SettingsError(f"options {shown(given)}: {wanted}")
        values, faults = {f.name: getattr(given, f.name) for f in options}, []
    else:
        known = [f.name for f in options]
        faults = [_unknown(cls, name, known) for name in given or {} if name not in known]
        values, errors = values_of(options, given or {}, os.environ if environ is None else environ)
        faults += errors
    faults += [
        f"options.{f.name} {shown(values[f.name])} is {f.metadata['wrong']}"
        for f in options
        if f.name in values and not f.metadata["holds"](values[f.name])
    ]
    if faults:
        raise SettingsError(*faults)
    return None if defaults is None else _made(cls, defaults, values)


def _unknown(cls: type, name: object, known: Iterable[str]) -> str:
    shown_name, there = printable(name), list(known)
    hint = did_you_mean(shown_name, there) or (
        f": there are {', '.join(there)}" if there else ": it declares no options"
    )
    return f"options: {cls.__name__} has no option {shown_name!r}{hint}"


def _made(cls: type, defaults: Any, values: Mapping[str, Any]) -> object:
    """Creates the options object; the author's ``__post_init__`` runs here."""
    try:
        with author_code(f"{type(defaults).__name__}.__post_init__()", DriverError, ValueError):
            return dataclasses.replace(defaults, **values)
    except ValueError as e:
        raise SettingsError(f"the options of {cls.__name__}: {printable(e)}") from None


def as_flags(cls: type, given: object) -> list[str]:
    """Returns command-line flags for ``given`` (see :func:`read_options`). Raises :class:`SettingsError` for a value without a text
    form.
    """
    out, faults = [], []
    for f in declared(cls):
        value = given.get(f.name) if isinstance(given, Mapping) else getattr(given, f.name, None)
        flag = f.metadata["flag"]
        if value is None:
            continue
        if isinstance(value, tuple) and any("," in item or item != item.strip() or not item for item in value):
            faults.append(
                f"options.{f.name} {shown(value)}: items with commas or surrounding spaces cannot be passed to another process"
            )
        if isinstance(value, bool):
            out.append(flag if value else f"--no-{flag[2:]}")
        else:
            out.append(f"{flag}={as_text(value)}")
    if faults:
        raise SettingsError(*faults)
    return out
