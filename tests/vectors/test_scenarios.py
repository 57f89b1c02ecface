"""Every recorded story of a whole cluster, told to the local cluster again.

``stories_not_yet.txt`` names the stories that do not come out as recorded yet, each with its reason. One that does must leave the list.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .stories import JSON, LONGEST, StateDiffersError, replay
from .test_vectors import FOLDER

HERE = Path(__file__).parent
STORIES = [json.loads(line) for line in (FOLDER / "scenarios.jsonl").read_text().splitlines()]
NOT_YET = dict(line.split(": ", 1) for line in (HERE / "stories_not_yet.txt").read_text().splitlines() if line.strip())


@pytest.mark.cases(24)
@pytest.mark.parametrize("story", [pytest.param(s, id=s["id"]) for s in STORIES])
async def test_the_cluster_reports_the_story_that_kubernetes_reported(story: JSON) -> None:
    reason = NOT_YET.get(story["id"])
    try:
        await replay(story, 1.0 if reason else LONGEST)
    except StateDiffersError as e:
        if reason:
            pytest.xfail(f"{reason} ({e})")
        raise
    assert not reason, f"comes out as recorded now: take {story['id']} off stories_not_yet.txt"


def test_the_list_of_what_is_not_yet_right_names_stories_that_exist() -> None:
    assert {s["id"] for s in STORIES} >= NOT_YET.keys()
