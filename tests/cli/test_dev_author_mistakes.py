"""What ``dra dev`` as a process says of each of an author's mistakes: of several drivers in one process, all that is wrong is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.author_mistakes import (
    CLASSES,
    DEVICES,
    DRIVER,
    FILES,
    HEALTH,
    PARAMETERS,
    PREPARE,
    UNPUBLISHED,
    Mistake,
    check_message,
    check_no_traceback,
)
from tests.helpers.dev_process import DevProcess, run_dev, run_dev_command
from tests.helpers.waiting import block_until

SIDE_BY_SIDE = 6  # drivers, each a process


def name(i: int) -> str:
    return f"acme-{i}.example.com"


def targets(folder: Path, mistakes: Sequence[Mistake]) -> list[str]:
    """Each mistake is in a driver of its own name."""
    return [m.target(folder / str(i), name(i)) for i, m in enumerate(mistakes)]


def of_driver(i: int, text: str) -> str:
    """As if it were the only driver."""
    return text.replace(name(i), DRIVER)


def together(mistakes: Sequence[Mistake]) -> Any:
    """A few at a time."""
    some = [mistakes[i : i + SIDE_BY_SIDE] for i in range(0, len(mistakes), SIDE_BY_SIDE)]
    return pytest.mark.parametrize("mistakes", [pytest.param(m, id=f"{m[0].name} and {len(m) - 1} more") for m in some])


def each_is_told(folder: Path, mistakes: Sequence[Mistake]) -> None:
    # Python's own word on an `await` that is missing comes with whatever line was run then.
    done = run_dev_command(*targets(folder, mistakes), PYTHONWARNINGS="ignore:coroutine:RuntimeWarning")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("dra: ")]
    assert len(said) == len(mistakes), done.stderr
    for i, (line, mistake) in enumerate(zip(said, mistakes, strict=True)):
        check_message(of_driver(i, line), mistake)
    check_no_traceback(done.stderr)


def test_files_and_classes_that_cannot_work_are_all_reported_before_anything_starts(tmp_path: Path) -> None:
    each_is_told(tmp_path, [*FILES, *CLASSES])


@pytest.mark.full
@together(DEVICES)
def test_drivers_whose_devices_cannot_be_notified_are_all_reported_at_the_end(
    tmp_path: Path, mistakes: Sequence[Mistake]
) -> None:
    each_is_told(tmp_path, mistakes)


@pytest.mark.full
def test_what_is_malformed_is_reported_under_each_driver(tmp_path: Path) -> None:
    mistakes = [*UNPUBLISHED, *HEALTH]
    with run_dev(tmp_path, *targets(tmp_path, mistakes)) as dev:
        drivers = dev.output.split("\n  acme-")[1:]
    assert len(drivers) == len(mistakes), dev.output
    for i, (lines, mistake) in enumerate(zip(drivers, mistakes, strict=True)):
        check_message(of_driver(i, lines), mistake)
    check_no_traceback(dev.log())


def pod_of(i: int, mistake: Mistake) -> list[dict[str, Any]]:
    """A class of one driver, and a pod that claims a device of it."""
    group, pod = "resource.k8s.io/v1", f"pod-{i}"
    cel = f'device.driver == "{name(i)}"'
    claim: dict[str, Any] = {"requests": [{"name": "card", "exactly": {"deviceClassName": pod}}]}
    if mistake.parameters is not None:
        claim["config"] = [{"opaque": {"driver": name(i), "parameters": mistake.parameters}}]
    main = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "card"}]}}
    spec = {"containers": [main], "resourceClaims": [{"name": "card", "resourceClaimTemplateName": pod}]}
    about = {"name": pod}
    return [
        {"apiVersion": group, "kind": "DeviceClass", "metadata": about, "spec": {"selectors": [{"cel": {"expression": cel}}]}},
        {"apiVersion": group, "kind": "ResourceClaimTemplate", "metadata": about, "spec": {"spec": {"devices": claim}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec},
    ]  # fmt: skip


def failed(dev: DevProcess, pods: int) -> dict[str, str]:
    """Why pods are not prepared, once that is known of so many; empty before."""
    events = json.loads(dev.kubectl("get", "events", "-o", "json"))["items"]
    found = {
        e["involvedObject"]["name"]: e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"
    }
    return found if len(found) == pods else {}


@pytest.mark.full
@pytest.mark.kubectl
@together([*PARAMETERS, *PREPARE])
def test_pods_that_cannot_be_prepared_are_reported_why(tmp_path: Path, mistakes: Sequence[Mistake]) -> None:
    objects = [o for i, m in enumerate(mistakes) for o in pod_of(i, m)]
    (tmp_path / "pods.yaml").write_text("---\n".join(json.dumps(o) + "\n" for o in objects))
    with run_dev(tmp_path, *targets(tmp_path, mistakes), "--apply", str(tmp_path / "pods.yaml")) as dev:
        events = block_until(lambda: failed(dev, len(mistakes)))
    for i, mistake in enumerate(mistakes):
        check_message(of_driver(i, events[f"pod-{i}"]), mistake)
    check_no_traceback(dev.log())
