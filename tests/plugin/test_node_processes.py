"""Real plugin processes: two at once, suspended ones, reboots, SIGTERM, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dra_kubeletplugin.kube.resource import CLAIMS
from tests.helpers.crash.harness import DRIVER, ROOT, NodeHarness, node_harness

pytestmark = pytest.mark.crash
OLD, NEW = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


def dra(b: NodeHarness, *args: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "KUBELET_ROOT": str(b.node.kubelet_root),
        "CDI_ROOT": str(b.node.cdi_root),
    }
    command = [sys.executable, "-m", "dra_kubeletplugin.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


@pytest.mark.full
async def test_a_rolling_update_fails_no_call_and_the_old_instance_s_exit_does_not_affect_the_new_one(
    tmp_path: Path,
) -> None:
    async with node_harness(tmp_path) as b:
        await b.start("old", POD_UID=OLD)
        await b.apply_pod("before")
        await b.cluster.wait_running("before")
        slices = [s["metadata"]["name"] for s in b.cluster.slices()]
        await b.start("new", POD_UID=NEW)
        await b.apply_pod("during")
        await b.cluster.wait_running("during")
        await b.cluster.delete_pod("before")
        assert await b.kill("old", signal.SIGTERM) == 0
        await b.apply_pod("after")
        await b.cluster.wait_running("after")
        assert [s["metadata"]["name"] for s in b.cluster.slices()] == slices
        # The scheduler and the claim controller watch each kind separately, so they may fail until they have seen all objects.
        other = ("FailedScheduling: ", "FailedResourceClaimCreation: ")
        assert not [e for e in b.cluster.events() if "Failed" in e and not e.startswith(other)]
        for name in ("during", "after"):
            await b.cluster.delete_pod(name)
        assert b.is_empty()
        assert await b.kill("new", signal.SIGTERM) == 0
        assert list((b.node.kubelet_root / "plugins_registry").iterdir()) == []
        assert not list((b.node.kubelet_root / "plugins" / DRIVER).glob("*.sock"))


@pytest.mark.full
async def test_a_suspended_old_instance_blocks_only_its_claim_and_only_for_a_bounded_time(tmp_path: Path) -> None:
    async with node_harness(tmp_path) as b:
        old = await b.start("old", POD_UID=OLD)
        hold_file = await b.apply_pod_and_hold_prepare("stuck")
        await b.until("a claim in preparation", lambda: "Preparing" in b.records().values())
        old.send_signal(signal.SIGSTOP)
        hold_file.unlink()
        await b.start("new", POD_UID=NEW)
        b.node.kubelet.manager.timeout = 20
        await b.apply_pod("free")
        await b.cluster.wait_running("free")
        # The kubelet still waits for the response of the old instance. It cancels the call and calls the new instance.
        (stuck_uid,) = [u for u, s in b.records().items() if s == "Preparing"]
        claim = next(c for c in b.cluster.claims() if c["metadata"]["uid"] == stuck_uid)
        from bench.node import Kubelet

        kubelet = Kubelet(b.node.kubelet.plugins.newest(DRIVER).endpoint)
        with pytest.raises(RuntimeError, match=rf"CLAIM_BUSY: claim default/.*process {old.pid}\)"):
            await kubelet.prepare([("default", claim["metadata"]["name"], stuck_uid)])
        await kubelet.close()
        await b.kill("old")
        await b.cluster.wait_running("stuck")
        b.check_quiet()


async def test_sigterm_waits_for_calls_in_flight_and_leaves_no_socket(tmp_path: Path) -> None:
    async with node_harness(tmp_path) as b:
        process = await b.start()
        hold_file = await b.apply_pod_and_hold_prepare("pod")
        process.send_signal(signal.SIGTERM)
        await b.until("the signal to be logged", lambda: "SIGTERM: stopping" in b.logged)
        hold_file.unlink()
        assert await process.wait() == 0
        b.plugins.clear()
        assert set(b.records().values()) == {"Prepared"}
        assert list((b.node.kubelet_root / "plugins_registry").iterdir()) == []
        assert not list((b.node.kubelet_root / "plugins" / DRIVER).glob("*.sock"))
        assert not list((b.node.kubelet_root / "plugins" / DRIVER / "processes").iterdir())
        await b.start()
        await b.cluster.wait_running("pod")
        b.check_quiet()


async def test_a_failed_background_task_ends_the_process_with_its_reason_in_the_last_line(tmp_path: Path) -> None:
    module = tmp_path / "failing.py"
    module.write_text(
        "from tests.helpers.crash.driver import Crash\n"
        "from dra_kubeletplugin.devices.slices import Publisher\n"
        "import asyncio\n"
        "async def run(self):\n"
        "    await asyncio.sleep(1)\n"
        "    raise RuntimeError('the publisher broke')\n"
        "Publisher.run = run\n"
        "class Failing(Crash):\n"
        "    pass\n"
    )
    async with node_harness(tmp_path) as b:
        env = {k: v for k, v in os.environ.items() if k not in {"KUBECONFIG", "POD_UID"}}
        env |= {
            "NODE_NAME": b.node.name, "KUBECONFIG": str(b.cluster.kubeconfig), "KUBELET_ROOT": str(b.node.kubelet_root),
            "CDI_ROOT": str(b.node.cdi_root), "CRASH_HARDWARE": str(b.hardware), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dra_kubeletplugin.cli", "run", f"{module}:Failing",
            env=env, cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            _, err = await process.communicate()
        assert process.returncode == 1
        lines = err.decode().strip().splitlines()
        assert any("a background task failed, so the process ends: publisher" in line for line in lines)
        assert "RuntimeError: the publisher broke" in lines[-1]
        assert list((b.node.kubelet_root / "plugins_registry").iterdir()) == []


async def test_dra_claims_lists_and_forgets_claims_after_confirmation(tmp_path: Path) -> None:
    async with node_harness(tmp_path) as b:
        await b.start(RECONCILE_INTERVAL="1h")
        await b.apply_pod("pod")
        await b.cluster.wait_running("pod")
        (uid,) = b.records()
        table = dra(b, "claims")
        assert table.returncode == 0, table.stderr
        assert "UID" in table.stdout.splitlines()[0]
        assert uid in table.stdout
        assert "Prepared" in table.stdout
        output = json.loads(dra(b, "claims", "-o", "json").stdout)
        assert output["claims"][0]["devices"][0]["device"] == "c-0"
        unconfirmed = dra(b, "claims", "forget", uid)
        assert unconfirmed.returncode == 1
        assert (unconfirmed.stdout, "Nothing was changed" in unconfirmed.stderr) == ("", True)
        assert list(b.records()) == [uid]
        confirmed = dra(b, "claims", "forget", uid, "--yes")
        assert confirmed.returncode == 0, confirmed.stderr
        assert (b.records(), b.files()) == ({}, [])
        assert dra(b, "claims", "forget", "nobody", "--yes").returncode == 2


async def test_a_claim_deallocated_and_allocated_again_under_the_same_uid_gets_its_new_device(tmp_path: Path) -> None:
    from bench.node import Kubelet, allocate

    async with node_harness(tmp_path) as b:
        await b.start(RECONCILE_INTERVAL="1h")
        ref = await allocate(b.cluster, DRIVER, "moved", "c-0")
        kubelet = Kubelet(b.node.kubelet.plugins.newest(DRIVER).endpoint)
        await kubelet.prepare([ref])
        claim = await b.cluster.client.get(CLAIMS, "moved", "default")
        status = claim["status"]
        cleared = await b.cluster.client.update(CLAIMS, {**claim, "status": {}}, "status")
        status["allocation"]["devices"]["results"][0]["device"] = "c-2"
        await b.cluster.client.update(CLAIMS, {**cleared, "status": status}, "status")
        await kubelet.prepare([ref])
        assert b.holders() == {"c-2": ref[2]}
        await kubelet.unprepare([ref])
        await kubelet.close()
        assert b.is_empty()


@pytest.mark.full
async def test_dra_cleanup_removes_the_remains_of_an_uninstalled_driver_and_nothing_of_a_running_one(
    tmp_path: Path,
) -> None:
    async with node_harness(tmp_path) as b:
        await b.start(POD_UID=OLD)
        await b.apply_pod("pod")
        await b.cluster.wait_running("pod")
        arguments = (
            "cleanup",
            "--driver-name",
            DRIVER,
            "--node-name",
            b.node.name,
            "--kubeconfig",
            str(b.cluster.kubeconfig),
        )

        async def clean(*options: str) -> subprocess.CompletedProcess[str]:
            return await asyncio.to_thread(dra, b, *arguments, *options)

        with_running_plugin = await clean()
        assert with_running_plugin.returncode == 2
        assert "is in use by a running plugin: delete its DaemonSet first" in with_running_plugin.stderr
        await b.node.kubelet.stop()  # otherwise it would delete the slices some time after the plugin's end
        await b.kill()  # leaves both sockets, the slices, a record and a CDI file
        with_prepared_claim = await clean()
        assert with_prepared_claim.returncode == 2
        assert "1 claim is still prepared (default/pod-t0-" in with_prepared_claim.stderr
        forced = await clean("--force")
        assert forced.returncode == 0, forced.stderr
        assert "removed 1 ResourceSlices, 2 sockets, 1 CDI files" in forced.stdout
        assert b.cluster.slices() == []
        assert b.files() == []
        assert list((b.node.kubelet_root / "plugins_registry").iterdir()) == []
        assert not (b.node.kubelet_root / "plugins" / DRIVER).exists()
        assert (await clean()).returncode == 0
