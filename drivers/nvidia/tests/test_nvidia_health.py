"""Tests of the health of GPUs: events, recovery actions, an updated kernel driver."""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from dra_devkit.hosts import described, schema
from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin.errors import NotReadyError

from nvidia import inject, machine
from nvidia.driver import Nvidia
from nvidia.hardware_state import HardwareState
from nvidia.health import Error, Monitor
from nvidia.sdk import Event, Gpu, GpuLostError, LibraryError, LibraryReplacedError, NoLibraryError, Recovery

H100 = Path(__file__).parents[1] / "hosts/two-h100.yaml"
ADDRESS, SECOND_ADDRESS = "0000:17:00.0", "0000:98:00.0"
FIRST, SECOND = "gpu-0000-17-00-0", "gpu-0000-98-00-0"
Server = DriverNode[Nvidia]


@contextlib.asynccontextmanager
async def server(**options: Any) -> AsyncIterator[tuple[Server, HardwareState]]:
    async with node_with(Nvidia, host=H100, options=options) as node:
        state = node.settings.sysfs_root / ".gpus.json"
        yield node, HardwareState(state, node.driver.host.boot_id())


async def test_an_xid_that_asks_for_a_reset_becomes_a_taint_until_the_gpu_works_again() -> None:
    async with server() as (node, hardware):
        hardware.set(action={ADDRESS: 1})
        hardware.send_xid(ADDRESS, 79)
        # Until the event arrives, the recovery action alone is a taint without a number.
        published = await node.wait_published(lambda p: any(t.value for t in p[FIRST].taints))
        (taint,) = published[FIRST].taints
        assert (taint.key, taint.value, taint.effect) == (f"{Nvidia.name}/xid", "79", "NoSchedule")
        assert not published[SECOND].taints
        metrics = node.driver.metrics
        labels = {"gpu": str(published[FIRST].attributes["uuid"]), "error": "XID 79"}
        assert metrics.get_sample_value(f"{metrics.prefix}gpu_errors_total", labels) == 1
        hardware.set(action={ADDRESS: 0})
        await node.wait_published(lambda p: not [t for t in p[FIRST].taints if t.effect != "None"])


async def test_the_command_of_the_readme_causes_a_fault_and_ends_it() -> None:
    async with server() as (node, _):
        host = str(node.settings.sysfs_root)
        inject.main([host, "--set", "action", f'{{"{ADDRESS}": 1}}', "--xid", ADDRESS, "79"])
        published = await node.wait_published(lambda p: any(t.value for t in p[FIRST].taints))
        assert [(t.value, t.effect) for t in published[FIRST].taints] == [("79", "NoSchedule")]
        inject.main([host, "--set", "action", "{}"])
        await node.wait_published(lambda p: not [t for t in p[FIRST].taints if t.effect != "None"])


def test_the_command_rejects_a_key_that_the_state_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described.build(tmp_path, schema.load(H100))
    with pytest.raises(SystemExit):
        inject.main([str(tmp_path), "--set", "actions", "{}"])
    assert "the state has no key 'actions'; it has boot, mig" in capsys.readouterr().err


async def test_an_xid_of_a_program_leaves_the_gpu_allocatable() -> None:
    async with server() as (node, hardware):
        hardware.send_xid(ADDRESS, 31)
        published = await node.wait_published(lambda p: bool(p[FIRST].taints))
        (taint,) = published[FIRST].taints
        assert (taint.key, taint.value, taint.effect) == (f"{Nvidia.name}/xid", "31", "None")
        assert node.plugin.inventory.healthy(FIRST) is True
        await node.run_pod(count=2)


async def test_an_error_in_an_instance_concerns_only_the_device_of_the_instance() -> None:
    async with server(nvidia_mig="dynamic") as (node, hardware):
        attributes = f'device.attributes["{Nvidia.name}"]'
        await node.run_pod(selector=f'{attributes}.type == "mig" && {attributes}.profile == "1g.10gb"')
        (instance,) = hardware.read()["instances"]
        hardware.send_xid(instance["address"], 31, gpu_instance=instance["gi"])
        published = await node.wait_published(lambda p: any(d.taints for d in p.values()))
        assert [n for n, d in published.items() if d.taints] == await node.allocated("pod")


async def test_a_lost_gpu_with_an_error_of_an_instance_does_not_hide_the_health_of_the_others() -> None:
    async with server(nvidia_mig="dynamic") as (node, hardware):
        hardware.send_xid(ADDRESS, 31, gpu_instance=1)
        uuid = (await node.published())[FIRST].attributes["uuid"]
        await node.api.wait("the error", lambda: _has_errors(node, str(uuid)))
        hardware.set(lost=[ADDRESS], action={SECOND_ADDRESS: 1})
        # GPUs are read one after the other, so one of the two faults can be published first.
        published = await node.wait_published(lambda p: bool(p[FIRST].taints and p[SECOND].taints))
        assert [t.key for t in published[FIRST].taints] == [f"{Nvidia.name}/gpu-lost"]


async def test_a_gpu_without_events_has_an_informational_taint() -> None:
    async with server() as (node, hardware):
        hardware.set(unmonitored=[ADDRESS])
        await node.restart()
        published = await node.wait_published(lambda p: bool(p[FIRST].taints))
        assert [(t.key, t.effect) for t in published[FIRST].taints] == [(f"{Nvidia.name}/unmonitored", "None")]


async def test_a_fault_of_a_gpu_is_one_of_all_its_partitions() -> None:
    async with server(nvidia_mig="dynamic") as (node, hardware):
        hardware.set(action={ADDRESS: 2})
        published = await node.wait_published(lambda p: bool(p[FIRST].taints))
        assert {n.startswith(FIRST) for n, d in published.items() if d.taints} == {True}
        assert sum(bool(d.taints) for d in published.values()) == 26


async def test_an_updated_kernel_driver_ends_the_process_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr("os.kill", lambda pid, number: ended.set())
    async with server() as (node, hardware):
        hardware.set(replaced=True)
        await node.api.wait("the end of the process", lambda: _is_set(ended))


async def _has_errors(node: Server, uuid: str) -> bool:
    return bool(node.driver._open().monitor.recent(uuid))


async def _is_set(event: threading.Event) -> bool:
    return event.is_set()


async def test_the_checks_name_a_gpu_that_nvml_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server() as (node, hardware):
        checks: Any = node.driver.checks  # plain in the driver, called in a thread by the framework
        assert {c.name: c.problem for c in checks()} == {"nvml": "", "gpus": "", "events": ""}
        hardware.set(lost=[ADDRESS])
        found = {c.name: c.problem for c in checks()}
        assert found["gpus"] == f"NVML does not see {ADDRESS}, which PCI has"
        monkeypatch.setattr("os.kill", lambda pid, number: None)
        hardware.set(replaced=True)
        (check,) = checks()
        assert (check.name, check.blocking) == ("nvml", True)
        assert "version mismatch" in check.problem


async def test_a_node_without_gpus_publishes_nothing_and_needs_no_library() -> None:
    async with node_with(Nvidia, host="virtual-machine") as node:
        assert not await node.published()
        checks: Any = node.driver.checks
        assert not any(c.problem for c in checks())
        assert node.driver._machine is None


# --- the monitor by itself ----------------------------------------------------------------------

GPU = Gpu("GPU-1", ADDRESS, 0, "H100", "Nvidia", "Hopper", "9.0", 1 << 30, "580.159.04", "13.0")


class Library:
    """Returns prepared events and recoveries, and then stops the monitor."""

    def __init__(self, *answers: Event | Exception | None, recovery: Recovery | Exception | None = None) -> None:
        self.answers = iter(answers)
        self.answer = recovery or Recovery()
        self.stop: Callable[[], None] = lambda: None

    def wait(self, seconds: float) -> Event | None:
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
            return answer
        self.stop()
        return None

    def unmonitored(self) -> dict[str, str]:
        return {}

    def recovery(self, uuid: str) -> Recovery:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def monitor(library: Any, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> tuple[Monitor, list[str]]:
    """Lets a monitor receive all events of ``library``. Returns the monitor, and its calls."""
    monkeypatch.setattr("nvidia.health.PAUSE", 0.001)
    calls: list[str] = []
    made = Monitor(library, lambda: calls.append("changed"), calls.append, logging.getLogger("test"), **arguments)
    library.stop = made.stop
    made.run()
    return made, calls


@pytest.mark.parametrize(
    ("recovery", "xid", "fault"),
    [
        (Recovery(), 79, ""),
        (Recovery("reset the GPU"), 79, "NVIDIA's driver asks after XID 79: reset the GPU"),
        (Recovery("reset the GPU"), 31, "NVIDIA's driver asks: reset the GPU"),
        (Recovery(rows_failed=True), 63, "defective memory rows could not be replaced after XID 63"),
        (Recovery(None), 79, "XID 79, and NVIDIA's driver cannot tell whether the GPU works"),
        (Recovery(None), 31, ""),
        (Recovery(None), 94, ""),
        (GpuLostError("no answer"), 79, "the GPU is lost: no answer"),
    ],
)
def test_the_kernel_driver_decides_whether_a_gpu_works_after_an_xid(
    recovery: Any, xid: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = monitor(Library(Event("GPU-1", "XID", xid), recovery=recovery), monkeypatch, ignored=[94])
    verdict = made.verdict(GPU)
    assert (verdict.fault, [e.xid for e in verdict.errors]) == (fault, [xid])


def test_a_gpu_whose_state_cannot_be_read_is_unknown_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = monitor(Library(recovery=LibraryError("nvmlDeviceGetFieldValues: Unknown Error (999)")), monkeypatch)
    health = made.verdict(GPU).health("gpu.example.com", "")
    assert health.healthy is None
    assert "Unknown Error (999)" in health.message


def test_repeated_errors_are_reported_once_and_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [Event("GPU-1", "XID", x) for x in (31, 31, 43)] + [Event("GPU-1", "MIG configuration change")]
    made, calls = monitor(Library(*events), monkeypatch)
    assert [e.text for e in made.recent("GPU-1")] == ["XID 43", "XID 31"]
    assert calls == ["changed"] * 4
    assert made.recent("GPU-2") == ()


def test_the_taint_has_the_error_of_the_hardware_although_a_program_fails_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [Event("GPU-1", "XID", 79), Event("GPU-1", "XID", 31)]
    made, _ = monitor(Library(*events, recovery=Recovery("reset the GPU")), monkeypatch)
    (taint,) = made.verdict(GPU).health("gpu.example.com", "").taints
    assert (taint.key, taint.value) == ("gpu.example.com/xid", "79")


def test_many_errors_of_programs_do_not_displace_an_error_of_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [Event("GPU-1", "XID", 79), *[Event("GPU-1", "XID", 31)] * 100]
    made, _ = monitor(Library(*events, recovery=Recovery(None)), monkeypatch)
    assert made.verdict(GPU).fault.startswith("XID 79")


async def test_a_library_that_fails_at_the_start_is_opened_by_a_later_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failures = machine.open_library, [LibraryError("nvmlInitWithFlags: Unknown Error (999)")]

    def opened(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args)

    monkeypatch.setattr(machine, "open_library", opened)
    async with server() as (node, _):
        await node.wait_published([FIRST, SECOND])


async def test_a_new_library_that_does_not_fit_the_loaded_one_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, number: ended.append(number))
    errors = [NoLibraryError("not loaded"), *[LibraryReplacedError("version mismatch")] * 9]

    def opened(*args: Any) -> Any:
        raise errors.pop(0) if len(errors) > 1 else errors[0]

    monkeypatch.setattr(machine, "open_library", opened)
    with pytest.raises(NotReadyError):
        async with server():
            pass
    assert ended


async def test_a_gpu_that_nvml_does_not_list_is_unknown_and_requests_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server() as (node, _):
        bindings, scans = node.driver._open().gpus, list[int]()
        original = bindings.gpus
        monkeypatch.setattr(bindings, "gpus", lambda: [g for g in original() if g.address != ADDRESS])
        await node.rescan()
        monkeypatch.setattr(node.driver, "rescan", lambda: scans.append(2))
        health: Any = node.driver.health
        for _ in range(5):
            found = await health() if inspect.iscoroutinefunction(health) else health()
            assert found[FIRST].healthy is None
            assert found[SECOND].healthy is True
        assert scans.count(2) <= 1


def test_an_old_error_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = monitor(Library(Event("GPU-1", "XID", 31)), monkeypatch)
    monkeypatch.setattr("nvidia.health.SHOWN_FOR", 0.0)
    assert made.recent("GPU-1") == ()
    assert Error(0, "GPU unavailable", None, 1.0).text == "GPU unavailable"


def test_a_library_without_events_is_an_obstacle_until_they_arrive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, calls = monitor(
        Library(LibraryError("no set"), LibraryError("no set"), GpuLostError("lost"), None), monkeypatch
    )
    assert caplog.messages == ["cannot receive events of GPUs: no set"]
    assert made.obstacle == ""
    assert calls == ["changed"] * 3  # the obstacle, the lost GPU, the end of the obstacle


def test_the_thread_ends_when_the_kernel_driver_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Event("GPU-1", "XID", 31)
    made, calls = monitor(Library(LibraryReplacedError("version mismatch"), never), monkeypatch)
    assert calls == ["version mismatch"]
    assert made.recent("GPU-1") == ()
