"""What one instance does with a claim's files must fit what another does with the claim at that moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_kubeletplugin import Claim, ContainerEdits, Driver, PreparedDevice
from tests.crash.rooms import Api, room, until
from tests.crash.stores import DRIVER


class Plain(Driver):
    name = DRIVER

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []

    def devices(self) -> list[Any]:
        return []

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.prepared.append(claim.uid)
        return [d.prepared(ContainerEdits(env={"D": d.name})) for d in claim.devices]


async def test_a_note_that_is_due_is_not_written_once_another_instance_has_unprepared_its_claim(tmp_path: Path) -> None:
    api, later = Api(), Plain()
    ref, last, other = (api.allocate(n, n, d, DRIVER) for n, d in (("a", "d-0"), ("last", "d-1"), ("b", "d-0")))
    async with room(tmp_path, Plain(), api) as old, room(tmp_path, Plain(), api) as new:
        await old.prepare(ref)
        assert await new.unprepare(ref) == ()
        await old.prepare(last)
        specs = old.claims.files.specs
        await until(specs.note_path("last").exists)
        await old.records()  # behind all notes
        assert not specs.note_path("a").exists()
    async with room(tmp_path, later, api) as third:
        assert await third.records() == {"last": "Prepared"}
        assert not isinstance(await third.prepare(other), Exception)
        assert later.prepared == ["b"]
