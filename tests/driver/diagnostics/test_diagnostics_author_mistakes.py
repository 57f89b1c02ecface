"""Mistakes of a driver's author are reported in tests, in the pod's event, in readiness, in the log and by `dra inspect`."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import DriverNode, PodError, node_with
from dra_kubeletplugin import Driver, cli
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import DraError, NotReadyError
from tests.helpers.author_mistakes import (
    CLASSES,
    DEVICES,
    FILES,
    HEALTH,
    PARAMETERS,
    PREPARE,
    UNPUBLISHED,
    Mistake,
    check_message,
)

# Python's warning about a missing `await`. It contains the author's line.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def named(mistakes: Iterable[Mistake]) -> Any:
    return pytest.mark.parametrize("mistake", [pytest.param(m, id=m.name) for m in mistakes])


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_devkit.testing.driver_process.PROGRESS_TIMEOUT", 0.2)


@pytest.fixture(autouse=True, scope="module")
def freeze_earlier_objects() -> None:
    """Exempts objects of earlier tests from the garbage collection after each test here. Otherwise, each collection takes 0.4 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collects coroutines that were never awaited, so that Python warns in this test and not in another one."""
    yield
    gc.collect()


@contextlib.asynccontextmanager
async def started(mistake: Mistake, folder: Path) -> AsyncIterator[DriverNode[Driver]]:
    async with node_with(load_driver(str(mistake.write(folder)) + ":Acme")) as node:
        yield node


async def wait_for_failed_prepare(node: DriverNode[Driver]) -> None:
    """Waits until prepare has failed, and then stops waiting for the pod immediately. Before that, the pod may not be scheduled yet."""
    await node.api.wait_event("pod", "FailedPrepareDynamicResources")
    await node.api.wait_running("pod", progress_timeout=0)


@named(FILES)
def test_a_file_without_a_valid_driver_is_reported_before_the_driver_starts(tmp_path: Path, mistake: Mistake) -> None:
    with pytest.raises(DraError) as e:
        load_driver(str(mistake.write(tmp_path)))
    check_message(e.value.event(), mistake)


@pytest.mark.cases(16)
@named(CLASSES)
async def test_an_invalid_class_is_reported_before_the_driver_starts(tmp_path: Path, mistake: Mistake) -> None:
    with pytest.raises(DraError) as e:
        async with started(mistake, tmp_path):
            pass
    check_message(e.value.event(), mistake)


@pytest.mark.cases(11)
@named(DEVICES)
async def test_an_invalid_result_of_devices_is_the_first_reported_fault(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotReadyError) as e:
        async with started(mistake, tmp_path):
            pass
    check_message(str(e.value), mistake)  # the lines of /readyz
    assert mistake.expected[0] in str(e.value).partition("; ")[0].replace("Did you mean", "did you mean")
    check_message(caplog.text, mistake)


@pytest.mark.cases(8)
@named(UNPUBLISHED)
async def test_an_unpublished_device_is_reported_for_the_waiting_pod(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(mistake, tmp_path) as node:
        check_message("\n".join(await node.plugin.notes()), mistake)
        with pytest.raises(PodError) as e:
            await node.run_pod(progress_timeout=0)
    check_message(e.value.why, mistake)
    check_message(caplog.text, mistake)


@pytest.mark.cases(4)
@named(PARAMETERS)
async def test_parameters_for_a_driver_without_parameters_are_reported_in_the_event(
    tmp_path: Path, mistake: Mistake
) -> None:
    async with started(mistake, tmp_path) as node:
        with pytest.raises(PodError) as e:
            await node.apply_pod(parameters=mistake.parameters)
            await wait_for_failed_prepare(node)
    check_message(e.value.why, mistake)


@pytest.mark.cases(8)
@named(PREPARE)
async def test_a_failing_prepare_is_reported_in_the_event_and_raises_in_the_test(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(mistake, tmp_path) as node:
        with pytest.raises(PodError) as e:
            await node.apply_pod()
            await wait_for_failed_prepare(node)
    check_message(e.value.why, mistake)
    check_message("".join(event.message for event in e.value.events), mistake)
    check_message(caplog.text, mistake)


@named(HEALTH)
async def test_an_invalid_health_report_is_reported_in_readiness(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(mistake, tmp_path) as node:

        async def notes() -> str:
            return "\n".join(await node.plugin.notes())

        check_message(await node.cluster.wait("a note", notes), mistake)
    check_message(caplog.text, mistake)


@pytest.mark.cases(16)
@named(m for m in [*DEVICES, *UNPUBLISHED, *HEALTH])
def test_inspect_reports_the_same_mistakes(
    tmp_path: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["inspect", str(mistake.write(tmp_path)) + ":Acme"])
    out, err = capsys.readouterr()
    check_message(out + err, mistake)


def test_a_traceback_contains_only_lines_of_the_author(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = "def devices(self):\n    return self._found()\n\ndef _found(self):\n    return {}['bus']"
    path = Mistake("deep", body, ()).write(tmp_path)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert cli.main(["inspect", f"{path}:Acme"]) == 2
    assert "KeyError: 'bus' (acme/driver.py:26)" in err.getvalue()
    assert "in _found" in caplog.text
    assert "dra_kubeletplugin/" not in caplog.text


def test_a_method_with_a_similar_name_but_another_signature_is_not_reported(tmp_path: Path) -> None:
    body = "def healthy(self, device): return True\ndef device(self, card): ...\ndef prepared(self, claim, card): ..."
    from dra_kubeletplugin.driver import make

    make(load_driver(str(Mistake("near", body, ()).write(tmp_path)) + ":Acme"))


async def test_attributes_that_a_feature_gate_removes_are_reported_with_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "def devices(self):\n    return [Device(f'd-{i}', attributes={'links': ['a', 'b'], 'index': i}) for i in range(3)]"
    async with started(Mistake("lists", body, ()), tmp_path) as node:
        message = "d-0 and 2 more published without attributes[links]: the API server's feature gate is off (DRAListTypeAttributes)"
        assert message in await node.plugin.notes()
        await node.run_pod()
    assert message in caplog.text
