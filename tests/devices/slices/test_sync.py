"""What a sync makes of the API server's answers, and what it costs: refusals, fields that were dropped, order, names."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Device, Health, Pool
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.devices.slices import Leadership, NodeScope
from dra_kubeletplugin.devices.slices.pack import PublishedNames, pack
from dra_kubeletplugin.devices.slices.publisher import Publisher
from dra_kubeletplugin.devices.slices.server_response import rejected_devices
from dra_kubeletplugin.devices.slices.taint_times import TaintTimes
from dra_kubeletplugin.devices.validation import recalled_device
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.errors import ForbiddenError, api_error
from dra_kubeletplugin.kube.resource import SLICES
from tests.devices.slices.test_sync_faults import Server, Writer, whole

OBJ: dict[str, Any] = {"spec": {"devices": [{"name": "a"}, {"name": "b"}]}}


def refusal(status: int, *fields: object) -> ApiError:
    causes = [{"field": f, "message": "no"} for f in fields]
    return api_error("refused", status, {"details": {"causes": causes}})


@pytest.mark.parametrize("status", [400, 422])
def test_the_devices_that_a_refusal_names_are_reported_with_what_is_wrong(status: int) -> None:
    error = refusal(status, "spec.devices[1].attributes", "spec.devices[1].name", "spec.devices[0]")
    assert rejected_devices(error, OBJ) == {"b": "attributes: no; name: no", "a": ": no"}


@pytest.mark.parametrize("field", [None, 7, "spec.pool.name", "spec.devices", "spec.devices[2].name", "metadata.name"])
def test_a_refusal_that_names_none_of_our_devices_takes_none(field: object) -> None:
    assert rejected_devices(refusal(422, field), OBJ) == {}


@pytest.mark.parametrize("status", [401, 403, 409, 500])
def test_what_is_no_refusal_of_an_object_is_about_no_device(status: int) -> None:
    assert rejected_devices(refusal(status, "spec.devices[0]"), OBJ) == {}


async def test_a_server_that_does_not_permit_it_is_distinguished_from_one_that_is_away() -> None:
    class Forbidding(Server):
        async def dra(self, plural: str) -> Any:
            raise ForbiddenError("slices is forbidden")

    inventory = Inventory("node")
    await inventory.update([Pool("node", [Device("a")])])
    server: Any = Forbidding([])
    publisher = Publisher(server, inventory, NodeScope("d.example.com", "node"), Metrics(), Leadership(), TaintTimes())
    assert await publisher._attempt() > 0
    assert publisher.fault == "not permitted to publish slices (see docs/deploy.md): slices is forbidden"


async def test_a_field_that_the_server_drops_is_counted_once_for_each_path() -> None:
    class Dropping(Server):
        def _keep(self, obj: dict[str, Any], name: str, uid: str) -> dict[str, Any]:
            obj = copy.deepcopy(obj)
            for device in obj["spec"].get("devices") or []:
                device.pop("attributes", None)
            return super()._keep(obj, name, uid)

    server = Dropping([])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)
    metrics = Metrics()
    writer.syncer._metrics = metrics
    await writer.answer(({f"d{i}": 1 for i in range(7)}, False))
    await writer.sync()
    (line,) = [
        text for text in metrics.text().decode().splitlines() if "dropped_fields_total " in text and text[0] != "#"
    ]
    assert float(line.split()[-1]) == len(writer.syncer.dropped) == 1
    assert await writer.sync() == 0  # and it is not fought over


def names_in_order(server: Server) -> list[str]:
    slices = sorted(server.objects.items())
    return [d["name"] for _, o in slices for d in o["spec"].get("devices") or []]


async def test_a_generation_that_is_written_again_has_the_author_s_order_and_the_slices_that_there_were() -> None:
    first = ({f"d{i}": 0 for i in range(9)}, False)  # three full slices
    second = ({"new": 0, **{f"d{i}": 1 for i in range(9)}}, False)  # one more, in front, and all others changed
    server = Server([(whole(first), whole(second))])
    writer = Writer(server)
    await writer.answer(first)
    await writer.sync()
    before = set(server.objects)
    await writer.answer(second)
    server.writes = 0
    await writer.settle()
    assert names_in_order(server) == ["new", *(f"d{i}" for i in range(9))]
    assert before <= set(server.objects)  # written over, not deleted and made again
    assert server.writes == 4


async def test_a_slice_whose_devices_all_went_elsewhere_is_not_kept() -> None:
    """Two of some slices, as two instances that publish at once leave them."""
    answer = ({f"d{i}": 0 for i in range(4)}, False)
    server = Server([(whole(answer),)])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)
    await writer.answer(answer)
    await writer.settle()
    copied = dict(sorted(server.objects.items())[0][1])
    for n in range(2):
        await server.create(SLICES, {**copied, "metadata": {**copied["metadata"], "generateName": f"0000{n}-x-"}})
    await writer.settle()
    assert sorted(names_in_order(server)) == [f"d{i}" for i in range(4)]
    assert len(server.objects) == 2


def test_a_new_device_goes_beside_the_one_that_the_author_put_before_it() -> None:
    before = {"s0": PublishedNames([f"a{i}" for i in range(3)]), "s1": PublishedNames([f"b{i}" for i in range(3)])}
    order = [*before["s0"].devices, "b0", "b1", "new", "b2"]
    contents = pack([recalled_device({"name": n}) for n in order], (), before, 100)
    (home,) = [c for c in contents if any(d.name == "new" for d in c.devices)]
    assert home.name == "s1"


def test_times_that_cannot_be_kept_leave_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "taint-times.json"
    path.mkdir()  # a file cannot replace it
    times = TaintTimes(path)
    times._keep({"pool": {"d": [{"key": "k", "timeAdded": "2026-01-01T00:00:00Z"}]}})
    assert list(tmp_path.iterdir()) == [path]
    assert "cannot write" in caplog.text


async def test_the_loop_goes_on_while_a_long_report_of_health_is_looked_at() -> None:
    inventory = Inventory("node")
    names = [f"d{i}" for i in range(5000)]
    await inventory.update([Pool("node", [Device(n) for n in names])])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns = 0
    await inventory.set_health({n: Health(True) for n in names}, 1.0)
    counting.cancel()
    assert turns >= 5
