"""Reviews and files with the worst parameters: the webhook responds to each, and ``dra validate`` ends in bounded time."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver.config.model import MAX_FAULTS
from dra_kubeletplugin.driver.config.objects import ConfigReader
from tests.helpers import worst_parameters
from tests.helpers.worst_parameters import DRIVER, KINDS, LIMIT, MACHINE, SHAPES, Plain, Versioned
from tests.plugin.webhook_reviews import post, review, running_webhook

READER = ConfigReader(DRIVER, KINDS)
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
