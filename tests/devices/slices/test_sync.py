"""Syncs after responses of the API server: rejections, dropped fields, and the order and names of slices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dra_kubeletplugin import Device, Pool, Taint
from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.devices.slices.server_response import rejected_devices
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube.errors import api_error
from dra_kubeletplugin.kube.resource import SLICES
from tests.devices.slices.slice_server import Server, Writer, scheduler_view
from tests.helpers.publisher import json_response, make_inventory, running_publisher, scripted_api_server
from tests.helpers.waiting import wait_until

OBJ: dict[str, Any] = {"spec": {"devices": [{"name": "a"}, {"name": "b"}]}}


def refusal(status: int, *fields: object) -> ApiError:
    causes = [{"field": f, "message": "no"} for f in fields]
    return api_error("refused", status, {"details": {"causes": causes}})


@pytest.mark.parametrize("status", [400, 422])
def test_a_rejection_is_reported_for_the_devices_that_it_names(status: int) -> None:
    error = refusal(status, "spec.devices[1].attributes", "spec.devices[1].name", "spec.devices[0]")
    assert rejected_devices(error, OBJ) == {"b": "attributes: no; name: no", "a": ": no"}


@pytest.mark.parametrize("field", [None, 7, "spec.pool.name", "spec.devices", "spec.devices[2].name", "metadata.name"])
def test_a_rejection_that_names_no_device_of_the_driver_rejects_no_device(field: object) -> None:
    assert rejected_devices(refusal(422, field), OBJ) == {}


@pytest.mark.parametrize("status", [401, 403, 409, 500])
def test_an_error_that_does_not_concern_an_object_rejects_no_device(status: int) -> None:
    assert rejected_devices(refusal(status, "spec.devices[0]"), OBJ) == {}


async def test_a_forbidden_request_is_distinguished_from_an_unreachable_server() -> None:
    def forbid(request: Request) -> Response | None:
        status = {"kind": "Status", "code": 403, "message": "slices is forbidden"}
        return json_response(status, 403) if request.method == "POST" else None

    async with scripted_api_server() as server:
        server.instead = forbid
        async with running_publisher(server, await make_inventory("a")) as publisher:
            await wait_until(
                lambda: publisher.fault.startswith("not permitted to publish slices (see docs/deploy.md): ")
            )


async def test_a_dropped_field_is_counted_once_for_each_path() -> None:
    class Dropping(Server):
        def keep(self, obj: dict[str, Any], name: str, uid: str) -> dict[str, Any]:
            obj = copy.deepcopy(obj)
            for device in obj["spec"].get("devices") or []:
                device.pop("attributes", None)
            return super().keep(obj, name, uid)

    server = Dropping([])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)
    metrics = writer.metrics
    await writer.set_result(({f"d{i}": 1 for i in range(7)}, False))
    await writer.sync()
    (line,) = [
        text for text in metrics.text().decode().splitlines() if "dropped_fields_total " in text and text[0] != "#"
    ]
    assert float(line.split()[-1]) == len(writer.syncer.dropped) == 1
    assert await writer.sync() == 0  # The publisher does not write the dropped field again.


def device_names(server: Server) -> list[str]:
    slices = sorted(server.objects.items())
    return [d["name"] for _, o in slices for d in o["spec"].get("devices") or []]


async def test_a_rewritten_generation_has_the_driver_s_order_and_keeps_its_slices() -> None:
    first = ({f"d{i}": 0 for i in range(9)}, False)  # This result fills three slices.
    second = (
        {"new": 0, **{f"d{i}": 1 for i in range(9)}},
        False,
    )  # This result adds one device in front and changes all other devices.
    server = Server([(scheduler_view(first), scheduler_view(second))])
    writer = Writer(server)
    await writer.set_result(first)
    await writer.sync()
    before = set(server.objects)
    await writer.set_result(second)
    server.writes = 0
    await writer.settle()
    assert device_names(server) == ["new", *(f"d{i}" for i in range(9))]
    assert before <= set(server.objects)  # The publisher updates the slices and does not recreate them.
    assert server.writes == 4


async def test_a_slice_is_deleted_if_all_its_devices_moved_to_other_slices() -> None:
    """Some slices exist twice, as after two instances that publish at once."""
    answer = ({f"d{i}": 0 for i in range(4)}, False)
    server = Server([(scheduler_view(answer),)])
    server.changed = lambda: None  # type: ignore[method-assign]
    writer = Writer(server)
    await writer.set_result(answer)
    await writer.settle()
    copied = dict(sorted(server.objects.items())[0][1])
    for n in range(2):
        await server.create(SLICES, {**copied, "metadata": {**copied["metadata"], "generateName": f"0000{n}-x-"}})
    await writer.settle()
    assert sorted(device_names(server)) == [f"d{i}" for i in range(4)]
    assert len(server.objects) == 2


async def test_a_taint_that_another_instance_removed_gets_a_new_time_when_it_is_added_again() -> None:
    """As in a rolling update that is rolled back: the older instance writes again after the newer one."""
    sick = Device("a", taints=[Taint(key="example.com/sick", effect="NoExecute")])
    server = Server([])
    server.changed = lambda: None  # type: ignore[method-assign]
    older, newer = Writer(server), Writer(server)
    await older.inventory.update([Pool("node", [sick])])
    await older.settle()
    (stored,) = server.objects.values()
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    stored["metadata"]["resourceVersion"] = str(next(server.numbers))
    await older.settle()
    await newer.inventory.update([Pool("node", [Device("a")])])
    await newer.settle()
    await older.settle()
    (stored,) = server.objects.values()
    assert "timeAdded" not in stored["spec"]["devices"][0]["taints"][0]  # the server adds the present time
