"""When the record database fails: set aside with its name and time, rebuilt from what can be known. Nothing is reset silently."""

from __future__ import annotations

import fcntl
import logging
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..cdi import ClaimSpecs
from ..driver import RecoveredClaim
from ..errors import RecordsNewerError
from .record import Record, State
from .store import Store, connect, write

log = logging.getLogger(__name__)
_SHARE = re.compile(r"-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$")


class Repair:
    """Opens a database that did not open. ``report`` says what was done; empty when nothing had to be."""

    def __init__(self, path: Path, specs: ClaimSpecs, pool: str, boot_id: str, wait: float) -> None:
        self.path = path
        self.specs = specs
        self.pool = pool
        self.boot_id = boot_id
        self.wait = wait
        self.report: list[str] = []
        self.set_aside: Path | None = None
        self.rebuilt: list[str] = []
        self.on_repaired: Callable[[], object] = lambda: None  # called in the store's thread

    def __call__(self, reason: Exception) -> sqlite3.Connection:
        """In the store's thread. Only damage is repaired; a full or read-only disk, or a newer schema, is left as it is."""
        if isinstance(reason, RecordsNewerError) or not is_damage(reason):
            raise reason
        # One instance repairs; another that saw the same damage finds the new file.
        with self.path.with_name(".repair-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return connect(self.path, self.wait)
            except sqlite3.DatabaseError as e:
                if not is_damage(e):
                    raise
            return self._replace(reason)

    def _replace(self, reason: Exception) -> sqlite3.Connection:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.path.with_name(f"{self.path.name}.damaged-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        self.set_aside = aside
        self.report.append(f"the record database was damaged ({reason}) and is set aside as {aside}")
        log.error("%s", self.report[-1])
        db = connect(self.path, self.wait)
        salvaged = self._salvage(aside, db)
        self.rebuild(db, salvaged)
        self.on_repaired()
        return db

    def _salvage(self, aside: Path, db: sqlite3.Connection) -> set[str]:
        """Whole records that the damaged file still gives; it is read only."""
        found: set[str] = set()
        try:
            old = sqlite3.connect(f"file:{aside}?mode=ro", uri=True)
            old.row_factory = sqlite3.Row
        except sqlite3.Error:
            return found
        try:
            for row in old.execute("SELECT * FROM claims"):
                record = _from_row(dict(row))
                if record and _add(db, self.specs, record):
                    found.add(record.uid)
        except sqlite3.Error:
            pass
        finally:
            old.close()
        if found:
            self.report.append(f"{len(found)} records were read from the damaged file")
            log.warning("%s", self.report[-1])
        return found

    def rebuild(self, db: sqlite3.Connection, known: Collection[str] = ()) -> None:
        """Records for CDI files that have none: their devices are in use, whoever's claim it is.

        Also for a database that was not there at all: a first start finds no files of ours.
        """
        for uid in self.specs.uids():
            if uid in known:
                continue
            record = self.from_file(uid)
            if record and _add(db, self.specs, record):
                self.rebuilt.append(uid)
        if self.rebuilt:
            self.report.append(f"{len(self.rebuilt)} records were rebuilt from CDI files: {', '.join(self.rebuilt)}")
            log.warning("%s", self.report[-1])

    def from_file(self, uid: str) -> Record | None:
        """What a claim's CDI file tells: the claim's UID, its devices and shares. Not its name, nor the driver's data."""
        try:
            spec = self.specs.read(uid)
            names = [d["name"] for d in spec["devices"]]
        except (OSError, msgspec.DecodeError, KeyError, TypeError):
            log.error("CDI file %s cannot be read: its claim's devices are not known", self.specs.path(uid))
            return None
        devices = []
        for name in names:
            device = str(name).removeprefix(f"{uid}-")
            share = _SHARE.search(device)
            entry = {
                "request": "",
                "pool": self.pool,
                "device": _SHARE.sub("", device),
                "cdi": [f"{spec['kind']}={name}"],
            }
            devices.append(entry | ({"shareID": share[1]} if share else {}))
        doc = {"devices": devices, "cdi": spec, "complete": True, "rebuilt": True}
        return Record(uid, "", "", State.PREPARED, self.boot_id, "", doc)


def is_damage(e: Exception) -> bool:
    """Whether the file's content is at fault, and not the disk below it."""
    if not isinstance(e, sqlite3.DatabaseError):
        return False
    text = str(e)
    if isinstance(e, sqlite3.OperationalError):
        return any(s in text for s in ("no such table", "no such column", "malformed", "disk I/O error"))
    return True


def _from_row(row: dict[str, object]) -> Record | None:
    try:
        return Record(
            str(row["uid"]),
            str(row["namespace"]),
            str(row["name"]),
            State(str(row["state"])),
            str(row["boot_id"]),
            "",
            msgspec.json.decode(str(row["doc"]), type=dict),
            str(row.get("error") or ""),
            int(str(row.get("attempts") or 0)),
            float(str(row["created"])),
        )
    except (KeyError, ValueError, msgspec.DecodeError):
        return None


def _add(db: sqlite3.Connection, specs: ClaimSpecs, record: Record) -> bool:
    driver = specs.vendor.removeprefix("k8s.")
    db.execute("BEGIN IMMEDIATE")
    write(db, record)
    for pool, device, share in record.exclusive():
        # Two claims may have had a device, one as an admin, which a file does not tell: the first keeps the hold.
        db.execute("INSERT OR IGNORE INTO holds VALUES (?, ?, ?, ?, ?)", (driver, pool, device, share, record.uid))
    db.execute("COMMIT")
    return True


async def merge_recovered(store: Store, specs: ClaimSpecs, claims: Iterable[RecoveredClaim], boot_id: str) -> list[str]:
    """Adds what the driver's ``recover()`` knows; a record that exists gets the driver's data."""
    done: list[str] = []
    for claim in claims:
        devices = []
        for d in claim.devices:
            entry = {"request": d.request, "pool": d.pool, "device": d.name}
            if d.share_id:
                entry["shareID"] = d.share_id
            if d.data is not None:
                entry["data"] = d.data
            devices.append(entry)
        existing = await store.get(claim.uid)
        if existing is None:
            doc = {"devices": devices, "cdi": None, "complete": True, "rebuilt": True}
            record = Record(claim.uid, claim.namespace, claim.name, State.PREPARED, boot_id, "", doc)
            await store.do(lambda db, r=record: store.insert(db, r))  # type: ignore[misc]
        else:
            by_name = {d["device"]: d for d in devices}
            for entry in existing.devices:
                entry |= {k: v for k, v in by_name.get(entry["device"], {}).items() if k in {"data", "request"} and v}
            existing.namespace, existing.name = existing.namespace or claim.namespace, existing.name or claim.name
            await store.save(existing)
        done.append(claim.uid)
    return done


__all__ = ["Repair", "is_damage", "merge_recovered"]
