"""Tests the messages of ``dra dev`` for mistakes of driver authors: it reports the mistakes of all drivers together."""

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
    beside_a_good_device,
    check_message,
    check_no_traceback,
)
from tests.helpers.dev_process import DevProcess, run_dev, run_dev_command
from tests.helpers.waiting import block_until

DRIVERS_PER_RUN = 6  # each driver is a process


def name(i: int) -> str:
    return f"acme-{i}.example.com"


def targets(folder: Path, mistakes: Sequence[Mistake]) -> list[str]:
    """Writes one driver for each mistake, each with its own name, and returns their targets."""
    return [m.target(folder / str(i), name(i)) for i, m in enumerate(mistakes)]


def of_driver(i: int, text: str) -> str:
    """Returns the text with the driver name that the expected messages contain."""
    return text.replace(name(i), DRIVER)


def in_groups(mistakes: Sequence[Mistake]) -> Any:
    """Parametrizes a test with groups of mistakes."""
    groups = [mistakes[i : i + DRIVERS_PER_RUN] for i in range(0, len(mistakes), DRIVERS_PER_RUN)]
    return pytest.mark.parametrize(
        "mistakes", [pytest.param(m, id=f"{m[0].name} and {len(m) - 1} more") for m in groups]
    )


def assert_each_is_reported(folder: Path, mistakes: Sequence[Mistake]) -> None:
    # Python prints its warning about a missing `await` beside an arbitrary line.
    done = run_dev_command(*targets(folder, mistakes), PYTHONWARNINGS="ignore:coroutine:RuntimeWarning")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("dra: ")]
    assert len(errors) == len(mistakes), done.stderr
    for i, (line, mistake) in enumerate(zip(errors, mistakes, strict=True)):
        check_message(of_driver(i, line), mistake)
    check_no_traceback(done.stderr)


def test_all_unusable_files_and_classes_are_reported_before_the_cluster_starts(tmp_path: Path) -> None:
    assert_each_is_reported(tmp_path, [*FILES, *CLASSES])


@pytest.mark.full
@in_groups(DEVICES)
def test_all_drivers_with_faulty_devices_are_reported_at_the_end(tmp_path: Path, mistakes: Sequence[Mistake]) -> None:
    assert_each_is_reported(tmp_path, mistakes)


@pytest.mark.full
def test_malformed_devices_and_health_are_reported_under_each_driver(tmp_path: Path) -> None:
    mistakes = [*map(beside_a_good_device, UNPUBLISHED), *HEALTH]
    with run_dev(tmp_path, *targets(tmp_path, mistakes)) as dev:
        drivers = dev.output.split("\n  acme-")[1:]
    assert len(drivers) == len(mistakes), dev.output
    for i, (lines, mistake) in enumerate(zip(drivers, mistakes, strict=True)):
        check_message(of_driver(i, lines), mistake)
    check_no_traceback(dev.log())


def pod_of(i: int, mistake: Mistake) -> list[dict[str, Any]]:
    """Returns a DeviceClass of one driver, and a pod that claims a device of this class."""
    group, pod = "resource.k8s.io/v1", f"pod-{i}"
    cel = f'device.driver == "{name(i)}"'
    claim: dict[str, Any] = {"requests": [{"name": "card", "exactly": {"deviceClassName": pod}}]}
    if mistake.parameters is not None:
        claim["config"] = [{"opaque": {"driver": name(i), "parameters": mistake.parameters}}]
    main = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "card"}]}}
    spec = {"containers": [main], "resourceClaims": [{"name": "card", "resourceClaimTemplateName": pod}]}
    metadata = {"name": pod}
    return [
        {"apiVersion": group, "kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": [{"cel": {"expression": cel}}]}},
        {"apiVersion": group, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": {"devices": claim}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
    ]  # fmt: skip


def failed(dev: DevProcess, pods: int) -> dict[str, str]:
    """Returns the messages of failed preparations by pod, or nothing while fewer than ``pods`` have one."""
    events = json.loads(dev.kubectl("get", "events", "-o", "json"))["items"]
    found = {
        e["involvedObject"]["name"]: e["message"] for e in events if e["reason"] == "FailedPrepareDynamicResources"
    }
    return found if len(found) == pods else {}


@pytest.mark.full
@pytest.mark.kubectl
@in_groups([*PARAMETERS, *PREPARE])
def test_events_contain_the_reason_why_pods_cannot_be_prepared(tmp_path: Path, mistakes: Sequence[Mistake]) -> None:
    objects = [o for i, m in enumerate(mistakes) for o in pod_of(i, m)]
    (tmp_path / "pods.yaml").write_text("---\n".join(json.dumps(o) + "\n" for o in objects))
    with run_dev(tmp_path, *targets(tmp_path, mistakes), "--apply", str(tmp_path / "pods.yaml")) as dev:
        events = block_until(lambda: failed(dev, len(mistakes)))
    for i, mistake in enumerate(mistakes):
        check_message(of_driver(i, events[f"pod-{i}"]), mistake)
    check_no_traceback(dev.log())
