"""Reviews and files with the worst parameters: the webhook responds to each and keeps little memory, and ``dra
validate`` and ``dra explain`` end in bounded time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dra_devkit.localcluster.apiserver import certificate
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver.config.model import MAX_FAULTS
from dra_kubeletplugin.driver.config.objects import ConfigReader
from tests.helpers import worst_parameters
from tests.helpers.worst_parameters import DRIVER, KINDS, LIMIT, MACHINE, SHAPES, Plain, Versioned
from tests.plugin.webhook_reviews import post, review, running_webhook

ROOT = Path(__file__).parents[2]
READER = ConfigReader(DRIVER, KINDS)
RESIDENT = 8 * 1024 * 1024
NOISE = 2 * 1024 * 1024  # pages that the kernel counts late, and timers of closed connections
WARM = 20  # ordinary reviews
COMMAND = 30.0  # CPU seconds of a command for one file; each takes a second or two
AUTHOR = f'''
from dra_kubeletplugin import Driver
from tests.helpers.worst_parameters import KINDS

class Worst(Driver):
    name = "{DRIVER}"
    config = KINDS

    async def devices(self):
        return []

    async def prepare(self, claim):
        return []

    async def unprepare(self, claim):
        pass
'''


def body(kind: type[worst_parameters.Config], shape: str, count: int = worst_parameters.ENTRIES) -> bytes:
    return json.dumps(review(worst_parameters.claim(worst_parameters.entries(kind, shape, count)))).encode()


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_every_review_gets_a_response_and_no_step_of_the_loop_is_long(tmp_path: Path) -> None:
    async with running_webhook(tmp_path, readers=[READER]) as (webhook, ca):
        await post(webhook.url, ca, body(Plain, "right numbers", 1))  # imports the modules
        for kind in (Plain, Versioned):
            for shape in SHAPES:
                sent = body(kind, shape)
                with worst_parameters.event_loop_steps() as steps:
                    status, response_body = await post(webhook.url, ca, sent)
                assert status == 200, (shape, response_body[:300])
                response = json.loads(response_body)["response"]
                assert response["allowed"] or len(response["status"]["message"]) <= 8 * 1024 + 200
                assert max(steps) < LIMIT * MACHINE, (shape, sorted(steps)[-3:])


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_ten_hostile_reviews_at_once_do_not_delay_another_review(tmp_path: Path) -> None:
    """Before a fix, all ten ended with status 500, and another review took 4.9 s."""
    async with running_webhook(tmp_path, readers=[READER]) as (webhook, ca):
        hostile = [
            asyncio.create_task(post(webhook.url, ca, body(kind, shape)))
            for kind in (Plain, Versioned)
            for shape in ("many unknown keys", "near names", "last of a mapping", "last number", "right items")
        ]
        await asyncio.sleep(0.05)
        innocent = json.loads((await post(webhook.url, ca, body(Plain, "right numbers", 1)))[1])
        assert innocent["response"]["allowed"]
        assert [status for status, _ in await asyncio.gather(*hostile)] == [200] * 10


@pytest.fixture
def author(tmp_path: Path) -> str:
    (tmp_path / "worst.py").write_text(AUTHOR)
    return f"{tmp_path / 'worst.py'}:Worst"


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES)
def test_validate_reports_at_most_ten_faults_of_an_object_in_bounded_time(
    tmp_path: Path, author: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A claim of each shape, and a class with parameters of each shape."""
    config = worst_parameters.entries(Versioned, "right numbers", 4)
    classes = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"config": config},
    }
    objects = [classes]
    for kind in (Plain, Versioned):
        obj = worst_parameters.claim(worst_parameters.entries(kind, shape), kind.KIND.lower(), requests=32)
        del obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
        objects.append(obj)
    file = tmp_path / "worst.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    start = time.process_time()
    code = main(["validate", str(file), "--driver", author, "-o", "json"])
    assert time.process_time() - start < COMMAND
    results = json.loads(capsys.readouterr().out)["objects"]
    assert len(results) == len(objects)
    assert code == any(o["faults"] for o in results)
    assert all(len(o["faults"]) <= 2 * (MAX_FAULTS + 1) for o in results)


@pytest.mark.cases(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["many unknown keys", "nested lists", "deep objects", "long integer"])
def test_explain_ends_in_bounded_time(tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    pod: JSON = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [{"name": "x", "resourceClaimName": "worst"}]},
    }  # fmt: skip
    objects = [pod, worst_parameters.claim(worst_parameters.entries(Plain, shape))]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    start = time.process_time()
    assert main(["explain", "-f", str(file), "-n", "ns", "pod/p"]) in {0, 1, 3}
    assert time.process_time() - start < COMMAND
    assert "p" in capsys.readouterr().out


def resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and malloc_trim is glibc's")
@pytest.mark.timeout(600)
async def test_the_memory_of_a_webhook_returns_to_its_level_within_two_minutes(tmp_path: Path, author: str) -> None:
    """120 reviews, ten at once.

    The baseline is taken after 20 ordinary reviews, because a webhook that serves is warm: TLS connections, threads for
    checks and lazily imported modules take about 2 MB. Before a fix, 100 MB stayed. While glibc raised its thresholds
    for large blocks, 15 to 20 MB stayed free but resident at the ends of the threads' arenas: see ``host/memory.py``.
    """
    cert, key = certificate.write(tmp_path, ["127.0.0.1"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_kubeletplugin", "webhook", author,
        "--address", "127.0.0.1:0", "--tls-cert-file", str(cert), "--tls-private-key-file", str(key),
        cwd=ROOT, env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr
    url, lines = "", []
    try:
        while not url:
            line = (await process.stderr.readline()).decode()
            assert line, lines
            lines.append(line)
            if "serving admission reviews at " in line:
                url = line.partition("serving admission reviews at ")[2].split("/validate")[0]
        drain = asyncio.create_task(process.stderr.read())
        for _ in range(WARM // 5):
            await asyncio.gather(*(post(url, cert, body(Plain, "same", 2)) for _ in range(5)))
        await asyncio.sleep(6)  # the first trim of the memory is over
        resident_before = resident(process.pid)
        for _ in range(3):
            hostile = [body(kind, shape) for kind in (Plain, Versioned) for shape in SHAPES]
            for i in range(0, len(hostile), 10):
                responses = await asyncio.gather(*(post(url, cert, sent) for sent in hostile[i : i + 10]))
                assert {status for status, _ in responses} == {200}
        deadline = time.monotonic() + 120
        while (growth := resident(process.pid) - resident_before) > RESIDENT + NOISE and time.monotonic() < deadline:
            await asyncio.sleep(1)
        assert growth <= RESIDENT + NOISE
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
    await drain
