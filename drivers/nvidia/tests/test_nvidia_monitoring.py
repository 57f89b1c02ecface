"""Tests of deploy/monitoring: its rules and its dashboard request the metrics that the driver has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from dra_devkit.testing import node_with

from nvidia.driver import Nvidia
from nvidia.hardware_state import HardwareState
from nvidia.health import PROGRAM_XIDS

PACKAGE = Path(__file__).parents[1]
MONITORING = PACKAGE / "deploy/monitoring"


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))


async def test_rules_and_dashboard_request_metrics_that_the_driver_has() -> None:
    host = PACKAGE / "hosts/two-h100.yaml"
    async with node_with(Nvidia, host=host, options={"nvidia_mig": "dynamic"}) as node:
        HardwareState(node.settings.sysfs_root / ".gpus.json", node.driver.host.boot_id()).send_xid("0000:17:00.0", 31)
        await node.wait_published(lambda devices: any(device.taints for device in devices.values()))
        attributes = f'device.attributes["{Nvidia.name}"]'
        await node.run_pod(selector=f'{attributes}.type == "mig" && {attributes}.profile == "1g.10gb"')
        page = node.plugin.metrics.text().decode()
    families = dict(re.findall(r"^(gpu_\w+)\{(.*?)\}", page, re.MULTILINE))
    for expression in expressions():
        names = re.findall(r'__name__=~"([^"]+)"', expression)
        assert names, expression
        for name in names:
            found = [labels for family, labels in families.items() if re.fullmatch(name, family)]
            assert found, name
            wanted = {label for label in ("gpu", "error", "operation") if re.search(rf"\b{label}\b", expression)}
            assert all(f'{label}="' in labels for label in wanted for labels in found), expression


def test_the_rules_know_the_same_errors_of_programs_as_the_driver() -> None:
    lists = set(re.findall(r"XID \(([\d|]+)\)", (MONITORING / "alerts.yaml").read_text()))
    assert [{int(number) for number in numbers.split("|")} for numbers in lists] == [set(PROGRAM_XIDS)]
