"""The record database as a file: what it is opened with, how it grows from version to version, and whose fault an error is."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin.claims.store import schema as module
from dra_kubeletplugin.claims.store.schema import (
    Connection,
    as_records_error,
    connect,
    explain_error,
    inodes_of,
    is_busy,
    is_damage,
    is_header_invalid,
    is_sound,
    make_tables,
    migrate,
    rollback,
    transaction,
)
from dra_kubeletplugin.errors import RecordsBusyError, RecordsError, RecordsNewerError

NEWEST = 4


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "records.db")


def made(path: Path) -> Path:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        make_tables(db)
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Connection]:
    db = connect(path, 1)
    try:
        yield db
    finally:
        db.close()


def one(db: sqlite3.Connection, query: str) -> object:
    return db.execute(query).fetchone()[0]


def test_what_a_database_is_opened_with(path: Path) -> None:
    with opened(path) as db:
        settings = {
            name: one(db, f"PRAGMA {name}")
            for name in ("foreign_keys", "journal_mode", "synchronous", "wal_autocheckpoint", "journal_size_limit", "user_version")
        }  # fmt: skip
        assert settings == {
            "foreign_keys": 1,
            "journal_mode": "wal",
            "synchronous": 1,
            "wal_autocheckpoint": 0,
            "journal_size_limit": 1048576,
            "user_version": NEWEST,
        }
        assert (db.inodes, db.generation) == (inodes_of(path), 1)
        assert None not in db.inodes
        assert db.isolation_level is None
        db.execute("INSERT INTO meta VALUES (CAST(x'ff61' AS TEXT), 'v')")
        assert one(db, "SELECT key FROM meta") == "\ufffda", "text that is none is read all the same"


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    odd = made(tmp_path / "a?b#c%20d.db")
    with opened(odd) as db:
        assert db.inodes == inodes_of(odd)


def test_a_row_without_its_claim_is_damage(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO holds (driver, pool, device, uid) VALUES ('d', 'p', 'x', 'nobody')")
    with pytest.raises(sqlite3.DatabaseError, match="a claim that has no row") as e:
        connect(path, 1)
    assert is_damage(e.value)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP TABLE meta", "its tables are not those of its schema: no such table: meta"),
        ("ALTER TABLE claims DROP COLUMN error", "its tables are not those of its schema: no such column"),
        ("ALTER TABLE holds DROP COLUMN takes", "its tables are not those of its schema: no such column"),
        ("PRAGMA user_version = 0", "the file has no schema"),
    ],
)
def test_a_database_of_other_tables_is_damaged(path: Path, statement: str, says: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    with pytest.raises(sqlite3.DatabaseError, match=says) as e:
        connect(path, 1)
    assert is_damage(e.value)


def test_no_file_an_empty_file_and_no_database_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with pytest.raises(FileNotFoundError):
        connect(path, 1)
    assert not path.exists()
    path.touch()
    with pytest.raises(sqlite3.DatabaseError, match="the file is empty"):
        connect(path, 1)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database") as e:
        connect(path, 1)
    assert is_damage(e.value)


def test_a_file_that_is_replaced_or_removed_while_it_is_opened_is_not_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = module._connect
    closed: list[sqlite3.Connection] = []

    def replaced(at: Path, wait: float) -> Connection:
        db = inner(at, wait)
        closed.append(db)
        made(at.with_name("new")).rename(at)
        return db

    monkeypatch.setattr(module, "_connect", replaced)
    with pytest.raises(FileNotFoundError, match="replaced while it was opened"):
        connect(path, 1)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        closed[0].execute("SELECT 1")

    def removed(at: Path, wait: float) -> Connection:
        at.unlink()
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(module, "_connect", removed)
    with pytest.raises(FileNotFoundError):
        connect(path, 1)


def test_a_schema_that_is_no_text_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(at: Path, wait: float) -> Connection:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    monkeypatch.setattr(module, "_connect", odd)
    with pytest.raises(sqlite3.DatabaseError, match="its schema is no text: invalid start byte") as e:
        connect(path, 1)
    assert is_damage(e.value)


# --- from version to version --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_database_of_any_version_before_becomes_today_s(version: int) -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for step in range(1, version + 1):
            for statement in module._MIGRATIONS[step]:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {version}")
        db.execute(
            "INSERT INTO claims (uid, namespace, name, state, boot_id, doc, created, updated) VALUES ('u', '', '', '', '', '', 0, 0)"
        )
        migrate(db, Path("records.db"))
        assert one(db, "PRAGMA user_version") == NEWEST
        assert db.execute("SELECT owner, error, attempts FROM claims").fetchall() == [("", "", 0)]
        assert db.execute("SELECT takes FROM holds").fetchall() == []
        assert db.execute("SELECT key, value FROM meta").fetchall() == []
        assert not db.in_transaction


def test_a_file_of_the_first_version_is_opened_as_today_s(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in module._MIGRATIONS[1]:
            db.execute(statement)
        db.execute("PRAGMA user_version = 1")
    with opened(path) as db:
        assert one(db, "PRAGMA user_version") == NEWEST


@pytest.mark.parametrize(("version", "good"), [(NEWEST + 1, True), (NEWEST + 2, False)])
def test_a_database_one_version_newer_is_used_as_it_is_and_a_newer_one_is_not(version: int, good: bool) -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        make_tables(db)
        db.execute(f"PRAGMA user_version = {version}")
        if good:
            migrate(db, Path("records.db"))
        else:
            with pytest.raises(RecordsNewerError, match=f"schema {version}, this plugin knows {NEWEST}"):
                migrate(db, Path("records.db"))
        assert one(db, "PRAGMA user_version") == version


def test_a_step_that_another_instance_took_meanwhile_is_not_taken_again() -> None:
    class Other(sqlite3.Connection):
        def execute(self, sql: str, parameters: object = ()) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE" and not getattr(self, "done", False):
                self.done = True
                for step in (2, 3, 4):
                    for statement in module._MIGRATIONS[step]:
                        super().execute(statement)
                super().execute(f"PRAGMA user_version = {NEWEST}")
            return super().execute(sql, parameters)  # type: ignore[arg-type]

    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None, factory=Other)) as db:
        for statement in module._MIGRATIONS[1]:
            db.execute(statement)
        db.execute("PRAGMA user_version = 1")
        migrate(db, Path("records.db"))
        assert one(db, "PRAGMA user_version") == NEWEST


def test_a_database_that_is_refused_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[sqlite3.Connection] = []

    def refuse(db: sqlite3.Connection, at: Path) -> None:
        seen.append(db)
        raise RecordsNewerError("newer")

    monkeypatch.setattr(module, "migrate", refuse)
    with pytest.raises(RecordsNewerError):
        connect(path, 1)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        seen[0].execute("SELECT 1")


@pytest.mark.usefixtures("no_leak")
def test_a_file_is_brought_to_the_disk_and_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(module.os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    module.sync_file(path)
    module.sync_file(path.parent)
    assert synced == [path.name, path.parent.name]


# --- transactions -------------------------------------------------------------------------------------------


def test_a_transaction_is_whole_or_not_at_all() -> None:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        make_tables(db)
        with transaction(db):
            db.execute("INSERT INTO meta VALUES ('a', '')")
            assert db.in_transaction
        with pytest.raises(KeyboardInterrupt), transaction(db):
            db.execute("INSERT INTO meta VALUES ('b', '')")
            raise KeyboardInterrupt
        with pytest.raises(KeyError), transaction(db):
            db.execute("ROLLBACK")  # as SQLite does by itself when a disk is full
            raise KeyError
        assert not db.in_transaction
        assert db.execute("SELECT key FROM meta").fetchall() == [("a",)]
        rollback(db)


def test_a_transaction_keeps_others_from_writing_from_its_beginning(path: Path) -> None:
    with opened(path) as db, contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        with transaction(db), pytest.raises(sqlite3.OperationalError, match="locked") as e:
            other.execute("BEGIN IMMEDIATE")
        assert is_busy(e.value)
        other.execute("BEGIN IMMEDIATE")


# --- whose fault it is --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "damage"),
    [
        (sqlite3.DatabaseError("file is not a database"), True),
        (sqlite3.DatabaseError("database disk image is malformed"), True),
        (sqlite3.OperationalError("no such table: claims"), True),
        (sqlite3.OperationalError("no such column: uid"), True),
        (sqlite3.OperationalError("malformed database schema"), True),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.OperationalError("disk I/O error"), False),
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.IntegrityError("UNIQUE constraint failed"), False),
        (sqlite3.ProgrammingError("Cannot operate on a closed database"), False),
        (sqlite3.NotSupportedError("x"), False),
        (sqlite3.DataError("x"), False),
        (sqlite3.InterfaceError("x"), False),
        (OSError("disk"), False),
    ],
)
def test_what_is_the_file_s_own_fault(fault: Exception, damage: bool) -> None:
    assert is_damage(fault) is damage


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (RecordsNewerError("itself"), RecordsNewerError, "^itself$"),
        (sqlite3.OperationalError("database is locked"), RecordsBusyError, "/r.db is locked by another instance"),
        (
            sqlite3.OperationalError("database or disk is full"),
            RecordsError,
            "/r.db cannot be written, the disk is full",
        ),
        (OSError(28, "No space left on device"), RecordsError, "/r.db cannot be written, the disk is full"),
        (sqlite3.OperationalError("attempt to write a readonly database"), RecordsError, "/r.db is read-only"),
        (OSError(30, "Read-only file system"), RecordsError, "/r.db is read-only"),
        (sqlite3.OperationalError("disk I/O error"), RecordsError, "/r.db cannot be used: disk I/O error"),
        (sqlite3.DatabaseError("database is locked"), RecordsError, "/r.db cannot be used: database is locked"),
    ],
)
def test_what_an_operator_is_told(fault: Exception, kind: type, says: str) -> None:
    found = as_records_error(fault, Path("/r.db"))
    assert type(found) is kind
    with pytest.raises(kind, match=says):
        raise found


@pytest.mark.parametrize(
    ("at", "value", "odd"),
    [
        (None, 0, False),
        (18, 1, False),
        (18, 2, False),
        (18, 3, True),
        (19, 0, True),
        (44, 1, True),
        (46, 1, True),
        (47, 0, True),
    ]
    + [(47, v, False) for v in (1, 2, 3, 4)]
    + [(47, 5, True), (17, 9, False), (20, 9, False), (43, 9, False)],
)
def test_headers_that_none_has(path: Path, at: int | None, value: int, odd: bool) -> None:
    data = bytearray(path.read_bytes())
    if at is not None:
        data[at] = value
    path.write_bytes(data)
    assert is_header_invalid(path) is odd
    for text, blamed in (("attempt to write a readonly database", odd), ("unsupported file format", odd), ("disk I/O", False)):  # fmt: skip
        fault = sqlite3.OperationalError(text)
        found = explain_error(fault, path)
        assert (found is not fault) is blamed
        assert is_damage(found) is blamed


def test_a_file_that_is_not_there_has_no_odd_header(tmp_path: Path) -> None:
    assert not is_header_invalid(tmp_path / "none")


def test_a_database_is_sound_where_all_of_it_can_be_read_and_fits_together(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert is_sound(db) is True
        db.execute("INSERT INTO holds (driver, pool, device, uid) VALUES ('d', 'p', 'd-0', 'nobody')")
        assert is_sound(db) is False
        db.execute("DELETE FROM holds")
        assert is_sound(db) is True
        root, size = (one(db, q) for q in ("SELECT max(rootpage) FROM sqlite_master", "PRAGMA page_size"))
    assert isinstance(root, int)
    assert isinstance(size, int)
    whole = path.read_bytes()
    for damaged in (whole[: (root - 1) * size] + b"x" * size + whole[root * size :], b"garbage" * 1000):
        path.write_bytes(damaged)
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert is_sound(db) is False


def test_what_is_opened_finds_each_hold_by_search_whichever_byte_of_the_table_is_wrong(path: Path) -> None:
    """Rows out of order can all be read, and a search for one that stands there finds nothing."""
    held = [("d", "p", f"d-{i}") for i in range(3)]
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO claims VALUES ('u', 'ns', 'n', 'Prepared', 'b', '', '{}', 1, 1, '', 0)")
        db.executemany("INSERT INTO holds (driver, pool, device, uid) VALUES (?, ?, ?, 'u')", held)
        root, size = (one(db, q) for q in ("SELECT rootpage FROM sqlite_master WHERE name = 'holds'", "PRAGMA page_size"))  # fmt: skip
    assert isinstance(root, int)
    assert isinstance(size, int)
    whole = path.read_bytes()
    page = whole[(root - 1) * size : root * size]
    rows_begin = page.index(b"d")
    opened_anyway = 0
    for at in range(rows_begin, len(page)):
        wrong = bytearray(whole)
        wrong[(root - 1) * size + at] ^= 0x40
        path.write_bytes(wrong)
        with contextlib.suppress(sqlite3.DatabaseError), opened(path) as db:
            opened_anyway += 1
            for hold in held:
                found = db.execute("SELECT uid FROM holds WHERE driver = ? AND pool = ? AND device = ?", hold)
                assert found.fetchall() == [("u",)], at
    assert opened_anyway < len(page) - rows_begin
