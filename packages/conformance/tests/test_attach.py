"""A driver that runs already: checks that only read run, the others are skipped, and the driver is unchanged."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from dra_conformance import ConformanceProfile, select_checks
from dra_conformance.api_server import NODE
from dra_conformance.attach import AttachedHarness, attach
from dra_conformance.driver_command import DriverCommand
from dra_conformance.harness import Harness
from dra_conformance.runner import OutcomeStatus
from dra_kubeletplugin.kube import load_config
from tests.helpers.conformance.runs import PLAIN, explained


async def test_only_checks_that_read_run(tmp_path: Path) -> None:
    profile = ConformanceProfile()
    async with Harness(DriverCommand.parse(PLAIN), profile) as node:
        await node.start()
        config = load_config(str(node.kubeconfig))
        other_driver = node.plugins / "other.example.com" / "state.json"
        other_driver.parent.mkdir()
        other_driver.write_text("{}")
        other_driver.chmod(0o666)  # no fault of the checked driver
        before = (node.slices, node.cdi.content(), node.claims)
        attached = AttachedHarness(node.kubelet_root, NODE, config, profile)
        found = await attach(attached, "", select_checks())
        assert found.fault == ""
        assert found.failed_ids == [], explained(found)
        ran = {o.check.id for o in found.outcomes if o.status is OutcomeStatus.PASSED}
        assert ran == {c.id for c in select_checks() if c.attach}
        assert before == (node.slices, node.cdi.content(), node.claims)
        assert node.driver.alive
        other = await attach(
            AttachedHarness(node.kubelet_root, NODE, config, profile), "other.example.com", select_checks()
        )
        assert "other.example.com is not registered in" in other.fault
        assert "which has plain.example.com: correct --driver-name" in other.fault
        assert other.exit_code() == 3
        no_node = await attach(AttachedHarness(node.kubelet_root, "no-node", config, profile), "", select_checks())
        assert "the Node no-node cannot be read" in no_node.fault
        assert "--node-name selects a Node" in no_node.fault
        empty = await attach(AttachedHarness(tmp_path, NODE, config, profile), "", select_checks())
        assert f"{tmp_path / 'plugins_registry'} contains no socket" in empty.fault
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as unserved:
            (tmp_path / "plugins_registry").mkdir()
            unserved.bind(str(tmp_path / "plugins_registry/old.sock"))
            stale = await attach(AttachedHarness(tmp_path, NODE, config, profile), "", select_checks())
        assert "no DRA driver responds in" in stale.fault
        assert "(old.sock): start the driver" in stale.fault
