"""What an author is told of his mistakes: in a test, in the pod's event, in readiness and the log, by `dra dev` and `dra inspect`."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Driver, cli
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.errors import DraError, NotReadyError
from dra_kubeletplugin.testing import DriverNode, PodError, node_with
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

# Python's own word on an `await` that is missing; it has the author's line.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


def named(mistakes: Iterable[Mistake]) -> Any:
    return pytest.mark.parametrize("mistake", [pytest.param(m, id=m.name) for m in mistakes])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kubeletplugin.testing.driver_process.PROGRESS_TIMEOUT", 0.2)


@pytest.fixture(autouse=True, scope="module")
def frozen() -> None:
    """Exempts what earlier tests left from the collection after each test here: it took 0.4 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """A coroutine that nobody awaited warns when it goes, which is to be here, and not in another test."""
    yield
    gc.collect()


@contextlib.asynccontextmanager
async def started(mistake: Mistake, folder: Path) -> AsyncIterator[DriverNode[Driver]]:
    async with node_with(load_driver(str(mistake.write(folder)) + ":Acme")) as node:
        yield node


async def refused(node: DriverNode[Driver]) -> None:
    """Gives the pod up at once, but not before it has a place: for a moment none may be found."""
    await node.api.wait_event("pod", "FailedPrepareDynamicResources")
    await node.api.wait_running("pod", progress_timeout=0)


@named(FILES)
def test_a_file_that_is_no_driver_s_is_reported_before_anything_starts(tmp_path: Path, mistake: Mistake) -> None:
    with pytest.raises(DraError) as e:
        load_driver(str(mistake.write(tmp_path)))
    check_message(e.value.event(), mistake)


@pytest.mark.cases(16)
@named(CLASSES)
async def test_a_class_that_cannot_work_is_reported_before_anything_starts(tmp_path: Path, mistake: Mistake) -> None:
    with pytest.raises(DraError) as e:
        async with started(mistake, tmp_path):
            pass
    check_message(e.value.event(), mistake)


@pytest.mark.cases(11)
@named(DEVICES)
async def test_an_answer_of_devices_that_is_none_is_the_first_thing_that_is_read(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotReadyError) as e:
        async with started(mistake, tmp_path):
            pass
    check_message(str(e.value), mistake)  # the lines of /readyz
    assert mistake.expected[0] in str(e.value).partition("; ")[0].replace("Did you mean", "did you mean")
    check_message(caplog.text, mistake)


@named(UNPUBLISHED)
async def test_what_is_not_published_is_reported_where_the_pod_waits(
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
async def test_parameters_that_nobody_reads_are_reported_in_the_event(tmp_path: Path, mistake: Mistake) -> None:
    async with started(mistake, tmp_path) as node:
        with pytest.raises(PodError) as e:
            await node.apply_pod(parameters=mistake.parameters)
            await refused(node)
    check_message(e.value.why, mistake)


@pytest.mark.cases(8)
@named(PREPARE)
async def test_a_prepare_that_is_wrong_is_reported_in_the_event_and_given_up_by_a_test(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(mistake, tmp_path) as node:
        with pytest.raises(PodError) as e:
            await node.apply_pod()
            await refused(node)
    check_message(e.value.why, mistake)
    check_message("".join(event.message for event in e.value.events), mistake)
    check_message(caplog.text, mistake)


@named(HEALTH)
async def test_a_report_of_health_that_is_none_is_reported_in_readiness(
    tmp_path: Path, mistake: Mistake, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(mistake, tmp_path) as node:

        async def noted() -> str:
            return "\n".join(await node.plugin.notes())

        check_message(await node.cluster.wait("a note", noted), mistake)
    check_message(caplog.text, mistake)


@pytest.mark.cases(16)
@named(m for m in [*DEVICES, *HEALTH])
def test_inspect_reports_the_same(tmp_path: Path, mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["inspect", str(mistake.write(tmp_path)) + ":Acme"])
    out, err = capsys.readouterr()
    check_message(out + err, mistake)


def test_a_deep_fault_is_logged_with_the_author_s_own_lines_and_none_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "def devices(self):\n    return self._found()\n\ndef _found(self):\n    return {}['bus']"
    path = Mistake("deep", body, ()).write(tmp_path)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert cli.main(["inspect", f"{path}:Acme"]) == 2
    assert "KeyError: 'bus' (acme/driver.py:25)" in err.getvalue()
    assert "in _found" in caplog.text
    assert "dra_kubeletplugin/" not in caplog.text


def test_a_helper_whose_name_is_near_is_the_author_s_own_where_it_could_not_be_called(tmp_path: Path) -> None:
    body = "def healthy(self, device): return True\ndef device(self, card): ...\ndef prepared(self, claim, card): ..."
    from dra_kubeletplugin.driver import make

    make(load_driver(str(Mistake("near", body, ()).write(tmp_path)) + ":Acme"))


async def test_what_a_gate_takes_from_a_device_is_reported_with_the_device(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = "def devices(self):\n    return [Device(f'd-{i}', attributes={'links': ['a', 'b'], 'index': i}) for i in range(3)]"
    async with started(Mistake("lists", body, ()), tmp_path) as node:
        says = "d-0 and 2 more published without attributes[links]: the API server's feature gate is off (DRAListTypeAttributes)"
        assert says in await node.plugin.notes()
        await node.run_pod()
    assert says in caplog.text
