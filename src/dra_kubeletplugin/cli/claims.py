"""``dra claims``: the records of prepared claims on this node, and how to drop one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from ..cdi import ClaimSpecs
from ..claims.offline import forget, read_rows
from ..claims.processes import ProcessLock
from ..claims.record import Unreadable
from ..claims.rows import Row
from ..errors import SettingsError, printable
from ..settings import Settings, load
from .options import given


def claims(args: argparse.Namespace) -> int:
    settings = load(given(args))
    found = _databases(settings)
    if args.action == "forget":
        return _forget(args, settings, found)
    records = [(driver, r) for driver, path in found for r in read_rows(path, settings.lock_wait)]
    if args.output == "json":
        print(json.dumps([_json(driver, r) for driver, r in records], indent=2))
        return 0
    rows: list[tuple[str, ...]] = [("DRIVER", "CLAIM", "UID", "STATE", "DEVICES", "AGE", "NOTE")]
    rows += [_row(driver, r) for driver, r in records]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("   ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    return 0


def _databases(settings: Settings) -> list[tuple[str, Path]]:
    """Record databases of one driver, or of all of this node."""
    folder = settings.kubelet_root / "plugins"
    names = [settings.driver_name] if settings.driver_name else sorted(p.name for p in folder.glob("*") if p.is_dir())
    found = [(n, folder / n / "records.db") for n in names if (folder / n / "records.db").exists()]
    if not found:
        raise SettingsError(
            f"no record database below {folder}: see --kubelet-root (KUBELET_ROOT) and --driver-name (DRIVER_NAME)"
        )
    return found


def _row(driver: str, r: Row) -> tuple[str, ...]:
    if isinstance(r, Unreadable):
        return (driver, r.shown.partition(" ")[0], r.uid, "Unreadable", "?", "?", r.reason)
    devices = ",".join(d["device"] + (f"/{d['shareID'][:8]}" if d.get("shareID") else "") for d in r.devices)
    minutes = int((datetime.now(UTC).timestamp() - r.created) // 60)
    note = r.error or ("rebuilt" if r.doc.get("rebuilt") else "")
    return (driver, f"{r.namespace or '?'}/{r.name or '?'}", r.uid, str(r.state), devices, f"{minutes}m", note)


def _json(driver: str, r: Row) -> dict[str, Any]:
    if isinstance(r, Unreadable):
        raw = {k: printable(v) for k, v in r.raw.items()}
        return {"driver": driver, "uid": r.uid, "state": "Unreadable", "reason": r.reason, "raw": raw}
    out = dataclasses.asdict(r)
    out["driver"] = driver
    out["state"] = str(r.state)
    decoded: dict[str, Any] = msgspec.to_builtins(out)
    return decoded


def _forget(args: argparse.Namespace, settings: Settings, found: list[tuple[str, Path]]) -> int:
    if not args.uid:
        raise SettingsError("give the UID of the record: dra claims forget UID")
    for driver, path in found:
        record = next((r for r in read_rows(path, settings.lock_wait) if r.uid == args.uid), None)
        if record is None:
            continue
        if isinstance(record, Unreadable):
            print(f"the record of claim {record.shown} cannot be read ({record.reason}); its devices are held.")
        else:
            processes = ProcessLock(path.parent / "processes")
            if record.owner and processes.alive(record.owner):
                raise SettingsError(
                    f"claim {record.shown} is being worked on by process {processes.pid(record.owner)}: wait, or stop it"
                )
            devices = ", ".join(d["device"] for d in record.devices) or "nothing"
            print(f"claim {record.shown} is {record.state} and holds {devices}.")
        print("Forgetting frees these devices without asking the driver to undo anything.")
        if not args.yes and (not sys.stdin.isatty() or input("Forget it? [y/N] ").strip().lower() != "y"):
            print("Nothing was changed. Use --yes where nobody can be asked.")
            return 1
        specs = ClaimSpecs(settings.cdi_root, driver)
        specs.remove(record.uid)
        specs.remove_note(record.uid)
        forget(path, settings.lock_wait, record.uid)
        print("forgotten")
        return 0
    raise SettingsError(f"there is no record of claim {args.uid}: see `dra claims`")
