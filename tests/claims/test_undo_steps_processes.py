"""Undo steps, exceptions and slow calls of a driver in a real plugin, and error messages that refer to the log by one
id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import PodError, node_with, on_node
from dra_kubeletplugin import Claim, Device, Driver, PermanentError, PreparedClaim, PreparedDevice
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from dra_kubeletplugin.claims import rollback_retries
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.resourceapi.kubernetes_releases import Features
from tests.helpers.drivers import Toy, make_toy_class
from tests.helpers.node_steps import NOTHING, allocate, prepare_call, ref, retry_prepare, unprepare_call


class Stepwise(Driver):
    """Three steps, of which one may fail. Records the steps that ran and the steps that were undone."""

    name = "steps.example.com"
    fail_at = 0
    fail_undo = ""
    is_await_missing = False
    done: list[str]
    undone_steps: list[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.done, cls.undone_steps = [], []

    async def devices(self) -> list[Device]:
        return [Device("s-0")]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        cls = type(self)
        for i in (1, 2, 3):
            registered = claim.on_undo("step", number=i)
            if not cls.is_await_missing:
                await registered
            if i == cls.fail_at:
                raise OSError(f"step {i} broke")
            cls.done.append(str(i))
        return [d.prepared() for d in claim.devices]

    async def undo_step(self, claim: PreparedClaim, number: int) -> None:
        cls = type(self)
        if str(number) == cls.fail_undo:
            raise OSError("cannot be reversed now")
        cls.undone_steps.append(str(number))


def make_stepwise_class() -> type[Stepwise]:
    class FreshStepwise(Stepwise):
        pass

    return FreshStepwise


async def allocate_step_claim(node: Any) -> Any:
    return await allocate(node, "c", [{"pool": "node-1", "device": "s-0"}])


async def test_a_failing_prepare_undoes_its_steps_newest_first() -> None:
    cls = make_stepwise_class()
    cls.fail_at = 3
    async with node_with(cls) as node:
        claim = await allocate_step_claim(node)
        error = (await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error
        assert error.startswith(
            "DRIVER_FAILED: the driver's prepare raised OSError: step 3 broke (claims/test_undo_steps_processes.py:"
        )
        assert cls.undone_steps == ["3", "2", "1"]
        assert await node.leftovers() == NOTHING


async def test_unprepare_undoes_the_steps_of_a_successful_prepare_also_in_another_process() -> None:
    cls = make_stepwise_class()
    async with node_with(cls) as node:
        claim = await allocate_step_claim(node)
        await prepare_call(node, ref(claim))
        await node.restart()
        await unprepare_call(node, ref(claim))
        assert cls.undone_steps == ["3", "2", "1"]


async def test_a_failing_undo_is_visible_keeps_the_device_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_retries, "_FIRST", 300.0)  # only the reconciler retries
    cls = make_stepwise_class()
    cls.fail_at, cls.fail_undo = 3, "2"
    async with node_with(cls, http_address="127.0.0.1:0") as node:
        claim = await allocate_step_claim(node)
        await prepare_call(node, ref(claim))
        (record,) = await node.plugin.claims.store.all()
        assert (str(record.state), record.attempts) == ("Unpreparing", 1)
        assert "cannot be reversed now" in record.error
        assert b"dra_rollback_failures_total 1.0" in node.plugin.metrics.text()
        assert b"dra_rollbacks_failing 1.0" in node.plugin.metrics.text()
        assert cls.undone_steps == ["3", "1"]
        report = await node.plugin.claims.reconciler.once()
        assert report.failed == [record.uid]
        cls.fail_undo = ""
        report = await node.plugin.claims.reconciler.once()
        assert report.rolled_back == [record.uid]
        assert await node.leftovers() == NOTHING
        assert b"dra_rollbacks_failing 0.0" in node.plugin.metrics.text()


async def test_a_step_without_an_await_is_also_undone_when_prepare_fails() -> None:
    cls = make_stepwise_class()
    cls.is_await_missing, cls.fail_at = True, 3
    async with node_with(cls) as node:
        claim = await allocate_step_claim(node)
        error = (await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error
        assert "OSError: step 3 broke" in error
        assert cls.undone_steps == ["3", "2", "1"]
        assert await node.leftovers() == NOTHING


@pytest.mark.cases(5)
@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(
    "exception",
    [
        StopIteration(),
        asyncio.CancelledError(),
        SystemExit(0),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseExceptionGroup("all", [SystemExit(0), OSError("x")]),
        OSError("\ud800 \x00"),
    ],
    ids=repr,
)
async def test_an_exception_of_a_method_fails_one_claim_and_the_plugin_continues(
    exception: BaseException, is_plain: bool
) -> None:
    class RaisingToy(Toy):
        is_failing = True

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if claim.name == "bad" and type(self).is_failing:
                raise exception
            return await super().prepare(claim)

    class PlainRaisingToy(RaisingToy):
        def prepare(self, claim: Claim) -> list[PreparedDevice]:  # type: ignore[override]
            if claim.name == "bad" and type(self).is_failing:
                raise exception
            return [d.prepared() for d in claim.devices]

    cls = PlainRaisingToy if is_plain else RaisingToy
    async with node_with(cls) as node:
        failing_claim = await allocate(node, "bad", [{"pool": "node-1", "device": "toy-0"}])
        other_claim = await allocate(node, "good", [{"pool": "node-1", "device": "toy-1"}])
        response = await prepare_call(node, ref(failing_claim), ref(other_claim))
        error = response.claims[failing_claim["metadata"]["uid"]].error
        assert error.startswith("DRIVER_FAILED: the driver's prepare raised ")
        assert not response.claims[other_claim["metadata"]["uid"]].error
        cls.is_failing = False
        assert not (await prepare_call(node, ref(failing_claim))).claims[failing_claim["metadata"]["uid"]].error


async def test_a_claim_whose_unprepare_hangs_delays_no_other_claim_of_a_call() -> None:
    class HangingToy(Toy):
        gate: asyncio.Event

        async def unprepare(self, claim: PreparedClaim) -> None:
            await type(self).gate.wait()

    HangingToy.gate = asyncio.Event()
    async with node_with(HangingToy, call_timeout=0.5) as node:
        first = await allocate(node, "first", [{"pool": "node-1", "device": "toy-0"}])
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-1"}])
        assert not (await retry_prepare(node, first["metadata"]["uid"], ref(first))).error
        unprepare_response = await unprepare_call(node, ref(first))
        assert unprepare_response.claims[first["metadata"]["uid"]].error.startswith("STILL_WORKING")
        assert not (await retry_prepare(node, second["metadata"]["uid"], ref(first), ref(second))).error
        response = await prepare_call(node, ref(first), ref(second))
        assert response.claims[first["metadata"]["uid"]].error.startswith("STILL_WORKING")
        HangingToy.gate.set()
        assert not (await retry_prepare(node, first["metadata"]["uid"], ref(first))).error


class LineRecorder(logging.Handler):
    """Records all log lines of the plugin as text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(TextFormatter().format(record))


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    handler = LineRecorder()
    logging.getLogger("dra_kubeletplugin").addHandler(handler)
    yield handler.lines
    logging.getLogger("dra_kubeletplugin").removeHandler(handler)


async def test_a_repeated_event_has_the_same_text_and_refers_to_the_traceback_in_the_log(log_lines: list[str]) -> None:
    class DeepToy(Toy):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return await super().prepare(claim)

    cls: type[Toy] = DeepToy
    cls.fail = ZeroDivisionError(f"by {object()}")
    async with node_with(cls) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        errors = set()
        for _ in range(3):
            cls.fail = ZeroDivisionError(f"by {object()}")
            errors.add((await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error)
    (event,) = errors
    assert "raised ZeroDivisionError: by <object object> (claims/test_undo_steps_processes.py:" in event
    operation = next(line for line in log_lines if event in line).partition("[")[2].partition("]")[0]
    assert len(operation) == 8
    traceback = next(line for line in log_lines if "Traceback" in line and "ZeroDivisionError: by " in line)
    assert f"[{operation}]" in traceback


async def test_a_plugin_starts_and_unprepares_while_the_api_server_is_unreachable() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        await node.stop()
        with node.cluster.api_outage():
            from dra_kubeletplugin.plugin.node import Plugin

            plugin = Plugin(cls(), node.settings, node.cluster.config)
            async with plugin.running():
                await plugin.registration.registered.wait()
                assert not (await unprepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error
                assert any("slices are not published" in line for line in await plugin.not_ready())
        await node.start()
        assert await node.leftovers() == NOTHING


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_every_version_of_the_api_publishes_and_prepares(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fixed_version(self: KubeClient) -> str:
        return version

    monkeypatch.setattr(KubeClient, "dra_version", fixed_version)
    async with (
        LocalCluster(features=Features.of(runtime_config={f"resource.k8s.io/{version}": True})) as cluster,
        on_node(cluster, make_toy_class()) as node,
    ):
        await node.run_pod(parameters={"colour": "blue"})
        assert (await node.plugin.client.dra("resourceslices")).version == version
        assert (await node.plugin.published(60)).current
        await node.delete_pod()


@pytest.mark.gates("DRADeviceTaints")
async def test_a_device_that_vanishes_in_use_stays_published_with_a_taint_until_its_claim_is_unprepared() -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:
        await node.run_pod()
        cls.count = 0
        await node.rescan()

        def published() -> dict[str, Any]:
            return {d["name"]: d for s in node.cluster.slices() for d in s["spec"].get("devices") or []}

        async def is_tainted() -> bool:
            return list(published()) == ["toy-0"] and bool(published()["toy-0"].get("taints"))

        await node.cluster.wait("the taint", is_tainted)
        await node.delete_pod()

        async def is_removed() -> bool:
            return not published()

        await node.cluster.wait("the removal of the device from the slices", is_removed)


async def test_a_failed_start_stops_the_driver_and_leaves_no_process_files() -> None:
    from dra_kubeletplugin.errors import SocketError

    class StopRecordingToy(Toy):
        has_stopped = False

        async def stop(self) -> None:  # type: ignore[override]
            type(self).has_stopped = True

    async with node_with(StopRecordingToy) as node:
        await node.stop()
        StopRecordingToy.has_stopped = False
        blocking_file = node.plugin.paths.registration
        blocking_file.write_text("precious")
        with pytest.raises(SocketError, match="is not a socket"):
            await node.start()
        assert StopRecordingToy.has_stopped
        assert not node.plugin.paths.dra.exists()
        assert list((node.settings.plugin_dir / "processes").iterdir()) == []
        assert blocking_file.read_text() == "precious"
        blocking_file.unlink()
        await node.start()


async def test_a_driver_that_cannot_start_is_reported_before_any_socket_exists() -> None:
    class FailingToy(Toy):
        is_failing = False

        def start(self) -> None:
            if type(self).is_failing:
                raise PermanentError("the vendor's library is missing: install libtoy")

    async with node_with(FailingToy) as node:
        await node.stop()
        FailingToy.is_failing = True
        with pytest.raises(PermanentError, match="libtoy"):
            await node.start()
        assert not node.plugin.paths.registration.exists()
        FailingToy.is_failing = False


async def test_device_nodes_are_searched_below_dev_root(tmp_path: Any) -> None:
    from dra_kubeletplugin import ContainerEdits

    class NodeToy(Toy):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(ContainerEdits(device_nodes=["/dev/toy0"])) for d in claim.devices]

    async with node_with(NodeToy, dev_root=tmp_path) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        uid = claim["metadata"]["uid"]
        error = (await prepare_call(node, ref(claim))).claims[uid].error
        assert error.startswith("HOST_PATH_MISSING: claim default/c: /dev/toy0 of device toy-0 is not on the host")
        (tmp_path / "toy0").touch()
        assert not (await prepare_call(node, ref(claim))).claims[uid].error


async def test_a_missing_path_of_a_described_host_is_an_error_that_names_the_field_to_add_it_to() -> None:
    from dra_kubeletplugin import ContainerEdits

    class NodeToy(Toy):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return [d.prepared(ContainerEdits(device_nodes=["/dev/toy0"])) for d in claim.devices]

    async with node_with(NodeToy, host={"functions": []}) as node:
        with pytest.raises(PodError) as error:
            await node.run_pod(progress_timeout=0.1)
    assert re.fullmatch(
        r"pod pod does not start: HOST_PATH_MISSING: claim default/\S+: /dev/toy0 of device toy-\d is not on the host: "
        r"the host is a described host; add the path to its YAML file, under `nodes:`, or under `classes:` of its PCI function "
        r"\(claims/test_undo_steps_processes\.py:\d+\) \[DRA-E124\]",
        error.value.why,
    )
    async with node_with(NodeToy, host={"functions": [], "nodes": {"toy0": "c 240:0"}}) as node:
        await node.run_pod()


async def test_data_and_edits_that_cannot_be_stored_fail_only_their_own_claim() -> None:
    from dra_kubeletplugin import ContainerEdits

    class InvalidDataToy(Toy):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            match claim.name:
                case "text":
                    return [d.prepared(data={"serial": "\ud800"}) for d in claim.devices]
                case "env":
                    return [d.prepared(ContainerEdits(env={"A": "\udc80"})) for d in claim.devices]
            return await super().prepare(claim)

    async with node_with(InvalidDataToy) as node:
        names = ["text", "env", "good"]
        claims = {n: await allocate(node, n, [{"pool": "node-1", "device": f"toy-{i}"}]) for i, n in enumerate(names)}
        response = await prepare_call(node, *(ref(c) for c in claims.values()))
        errors = {n: response.claims[c["metadata"]["uid"]].error for n, c in claims.items()}
        assert errors["text"].startswith(
            "BAD_ANSWER: claim default/text: device toy-0: data.serial is not valid Unicode"
        )
        assert errors["env"].startswith("INVALID_CDI: env[0]")
        assert errors["good"] == ""


async def test_claims_stay_prepared_if_the_server_no_longer_serves_the_whole_resource() -> None:
    async with node_with(make_toy_class(), reconcile_grace_period=0) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        node.cluster.api.injected_faults.served = set()
        try:
            for _ in range(2):
                report = await node.plugin.claims.reconciler.once()
                assert report.unprepared == []
            error = (await prepare_call(node, ("default", "other", "u"))).claims["u"].error
            assert error.startswith("API_UNAVAILABLE")
        finally:
            node.cluster.api.injected_faults.served = None
        assert [r.uid for r in await node.plugin.claims.store.all()] == [claim["metadata"]["uid"]]
