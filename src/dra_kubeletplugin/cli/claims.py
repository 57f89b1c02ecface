"""``dra claims``: lists the records of prepared claims on this node, and deletes single records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ..base.local_clusters import kubelet_options, running, state_root
from ..base.settings import Settings
from ..base.terminal import indented
from ..base.text import duration
from ..cdi import ClaimSpecs
from ..claims.instance_lock import InstanceLock
from ..claims.metadata_files import MetadataFiles
from ..claims.record import Record, Row, UnreadableRecord, details
from ..claims.rollback_retries import retry_note
from ..claims.store.files import forget, read_rows
from ..errors import SettingsError
from .output_models import ClaimFile, Claims, RecordedClaim, RecordedDevice, SharedState
from .shell.exit_codes import Exit
from .shell.options import given, refuse
from .shell.output import columns, put

_HEAD = ("DRIVER", "CLAIM", "UID", "STATE", "DEVICES", "AGE", "NOTE")
_SHARED_HEAD = ("DRIVER", "SHARED STEP", "HARDWARE", "STATE", "CLAIMS")


def claims(args: argparse.Namespace) -> int:
    settings = Settings.load(given(args))
    if args.action == "list":
        refuse(args, {"uid": "a UID", "yes": "--yes"}, "is only for `dra claims forget UID`")
    elif not args.uid:
        raise SettingsError("the UID of the record is missing: dra claims forget UID")
    found = _folders(settings)
    if args.action == "forget":
        return _forget(args, settings, found)
    records = [(driver, r) for driver, path in found for r in read_rows(path)]
    files = tuple(_files(settings, [d for d, _ in found]))
    put(
        Claims(tuple(_claim(d, r) for d, r in records), files, tuple(_shared(records))),
        args.output,
        partial(_text, records),
    )
    return Exit.SUCCESS


def _folders(settings: Settings) -> list[tuple[str, Path]]:
    """Returns the folder with the records of the driver in the settings, or the folders of all drivers on this node."""
    folder = settings.kubelet_root / "plugins"
    names = [settings.driver_name] if settings.driver_name else sorted(p.name for p in folder.glob("*") if p.is_dir())
    paths = [(n, folder / n / "claims") for n in names]
    found = [(n, path) for n, path in paths if path.exists()]
    if not found:
        local = running(state_root()) if settings.kubelet_root == Settings.kubelet_root else []
        raise SettingsError(
            f"there are no claim records below {folder}: check --kubelet-root (KUBELET_ROOT) and --driver-name (DRIVER_NAME)",
            *(f"`dra dev` runs in {state}: add {' or '.join(kubelet_options(state))}" for state in local),
        )
    return found


def _files(settings: Settings, drivers: Iterable[str]) -> Iterator[ClaimFile]:
    try:
        for driver in drivers:
            yield from (ClaimFile(driver, uid) for uid in ClaimSpecs(settings.cdi_root, driver).uids())
    except OSError as e:
        raise SettingsError(f"--cdi-root (CDI_ROOT) {settings.cdi_root} cannot be read: {e.strerror}") from None


def _text(records: Sequence[tuple[str, Row]], found: Claims) -> Iterator[str]:
    yield from columns([_HEAD, *(_row(d, r) for d, r in records)])
    if found.shared:
        yield ""
        rows = [
            (s.driver, s.step, s.key, "set up" if s.ready else "unfinished", ",".join(s.claims)) for s in found.shared
        ]
        yield from columns([_SHARED_HEAD, *rows])


def _shared(records: Sequence[tuple[str, Row]]) -> Iterator[SharedState]:
    # By driver, step and key: the name of each claim, and whether the state is set up for it.
    users: dict[tuple[str, str, str], list[tuple[str, bool]]] = {}
    for driver, r in records:
        if isinstance(r, Record) and not r.superseded:
            for e in r.shared:
                shown = f"{r.namespace or '?'}/{r.name or '?'}"
                users.setdefault((driver, e["step"], e["key"]), []).append((shown, bool(e.get("ready"))))
    for key, found in sorted(users.items()):
        yield SharedState(*key, any(ready for _, ready in found), tuple(name for name, _ in found))


def _row(driver: str, r: Row) -> tuple[str, ...]:
    if isinstance(r, UnreadableRecord):
        return (driver, r.shown.partition(" ")[0], r.uid, "Unreadable", "?", "?", r.reason)
    devices = ",".join(d["device"] + (f"/{d['shareID'][:8]}" if d.get("shareID") else "") for d in r.devices)
    age = duration(datetime.now(UTC).timestamp() - r.created)
    retry = retry_note(r)
    note = r.error + (f" ({retry})" if retry else "") or ("recovered" if r.recovered else "")
    return (driver, f"{r.namespace or '?'}/{r.name or '?'}", r.uid, str(r.state), devices, age, note)


def _claim(driver: str, r: Row) -> RecordedClaim:
    if isinstance(r, UnreadableRecord):
        namespace, _, name = r.shown.partition(" ")[0].partition("/")
        return RecordedClaim(driver, r.uid, namespace, name, "Unreadable", (), "", "", 0, r.reason, False, r.raw)
    devices = tuple(
        RecordedDevice(d.get("request") or "", d.get("pool") or "", d["device"], d.get("shareID") or "")
        for d in r.devices
    )
    return RecordedClaim(
        driver,
        r.uid,
        r.namespace,
        r.name,
        str(r.state),
        devices,
        _time(r.created),
        _time(r.updated),
        r.attempts,
        r.error,
        r.recovered,
        details(r),
        "" if r.retry_at is None else _time(r.retry_at),
    )


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a record may contain any number
        return ""


def _forget(args: argparse.Namespace, settings: Settings, found: list[tuple[str, Path]]) -> int:
    for driver, path in found:
        record = next((r for r in read_rows(path) if r.uid == args.uid), None)
        if record is None:
            continue
        if isinstance(record, UnreadableRecord):
            _print(f"the record of claim {record.shown} cannot be read ({record.reason}); its devices are held.")
        else:
            processes = InstanceLock(path.parent / "processes")
            if record.owner and processes.alive(record.owner):
                raise SettingsError(
                    f"claim {record.shown} is being processed by process {processes.pid(record.owner)}: wait, or stop that process"
                )
            devices = ", ".join(d["device"] for d in record.devices) or "nothing"
            _print(f"claim {record.shown} is {record.state} and holds {devices}.")
        _print("Forgetting frees these devices without calling the driver: the hardware stays as it is.")
        if not args.yes and not _confirmed():
            why = (
                "" if sys.stdin.isatty() else ": without a terminal, you cannot confirm. Repeat the command with --yes"
            )
            _print(f"Nothing was changed{why}.")
            return Exit.NEGATIVE
        forget(path, settings.lock_timeout, record.uid, partial(_remove_files, settings, driver, path, record.uid))
        put(Claims((_claim(driver, record),), ()), args.output, lambda _: ["forgotten"])
        return Exit.SUCCESS
    raise SettingsError(f"there is no record of claim {args.uid}: see `dra claims`")


def _remove_files(settings: Settings, driver: str, path: Path, uid: str) -> None:
    specs = ClaimSpecs(settings.cdi_root, driver)
    specs.remove(uid)
    specs.remove_note(uid)
    MetadataFiles(path.parent, driver).remove_all(uid)


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        return False
    print("Forget it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "y"


def _print(text: str) -> None:
    print(indented(text), file=sys.stderr)
