"""Each symptom of docs/troubleshooting.md is caused on a running cluster, and the page contains the observed text."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
from pathlib import Path

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import DriverNode, node_with
from dra_kubeletplugin import (
    Device,
    Health,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
    Version,
)
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from dra_kubeletplugin.cli.shell import loop_watchdog
from dra_kubeletplugin.errors import DraError, SettingsError
from dra_kubeletplugin.kube import ApiConfig
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.plugin.node import Plugin
from dra_tools.doctor import runtimes
from packages.devkit.tests.packaging.manifests.deployed import config_of
from tests.docs.pending_symptoms import remote_controller
from tests.docs.record_symptoms import damage_head, record_file, remove_note
from tests.docs.symptoms import (
    PREPARE,
    PRODUCERS,
    apply_pod,
    claims_command,
    event_message,
    explanation,
    missing_lines,
    produces,
    symptoms,
    wait_for_prepare_event,
    wait_for_readiness_line,
)
from tests.helpers.drivers import Toy, make_toy_class
from tests.helpers.nimbus_n4 import HALF, ONE_CARD, Nimbus
from tests.helpers.node_steps import allocate, prepare_call, ref


@pytest.mark.cases(12)
@pytest.mark.parametrize("heading", symptoms())
async def test_the_text_of_each_symptom_is_observed_on_a_cluster(heading: str) -> None:
    promised = symptoms()[heading]
    assert promised, "each symptom has a text"
    seen = await PRODUCERS[heading]()
    assert missing_lines(promised, seen) == [], "observed:\n" + "\n".join(seen)


def test_the_page_and_the_tests_have_the_same_symptoms() -> None:
    assert PRODUCERS.keys() == symptoms().keys()


def test_missing_lines_returns_the_lines_that_were_not_observed() -> None:
    assert missing_lines(["a <name> b", "c ..."], ["a x b", "c d e"]) == []
    assert missing_lines(["a <name> b"], ["a b", "a x bc"]) == ["a <name> b"]


# --- ContainerCreating ------------------------------------------------------------------------------


@produces("No plugin responds to the kubelet")
async def no_plugin_responds() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.stop()
        await apply_pod(node)
        return [*await wait_for_prepare_event(node, "is not registered"), await explanation(node.cluster)]


@produces("The driver fails to prepare")
async def prepare_fails() -> list[str]:
    driver = make_toy_class()
    driver.fail = OSError("the board does not respond")
    async with node_with(driver) as node:
        await node.apply_pod()
        return await event_message(node.cluster, "pod", PREPARE)


@produces("The parameters are wrong")
async def wrong_parameters() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(parameters={"colour": "green"})
        return await event_message(node.cluster, "pod", PREPARE)


async def leak_claim(node: DriverNode[Toy]) -> None:
    """Deletes a claim from the API server while the driver cannot release its devices."""
    await node.run_pod("first", count=4)
    claim = await node.claim_of("first")
    node.driver_class.fail_unprepare = RetryableError("the board is stuck")
    await node.api.remove("Pod", "first")
    await node.api.remove("ResourceClaim", claim["metadata"]["name"])


@produces("A deleted claim still holds the device")
async def device_still_held() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await leak_claim(node)
        await node.apply_pod()
        seen = await event_message(node.cluster, "pod", PREPARE)
        driver.fail_unprepare = None
        return seen


@produces("A claim was deleted while its pod runs")
async def claim_deleted_in_use() -> list[str]:
    async with node_with(make_toy_class(), reconcile_interval=0.1) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        name = claim["metadata"]["name"]
        await node.cluster.client.patch(CLAIMS, name, {"metadata": {"finalizers": None}}, "default")
        await node.api.remove("ResourceClaim", name)
        return await event_message(node.cluster, name, "DeletedClaimHeld")


@produces("The card is in another state")
async def card_in_another_state() -> list[str]:
    class Newer(Nimbus):
        firmware = "4.3"

    async with node_with(Nimbus, host=ONE_CARD) as node:
        await node.run_pod("first", selector=HALF)
        await node.upgrade(Newer)
        await node.apply_pod(selector=HALF)
        return await event_message(node.cluster, "pod", PREPARE)


@produces("The device does not exist any more")
async def device_gone() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await node.stop()
        await apply_pod(node)
        await event_message(node.cluster, "pod", "Scheduled")
        driver.count = 0
        await node.start()
        return await wait_for_prepare_event(node, "DEVICE_GONE")


@produces("Preparing takes long")
async def slow_prepare() -> list[str]:
    driver = make_toy_class()
    driver.block = asyncio.Event()
    async with node_with(driver, call_timeout=0.5) as node:
        await node.apply_pod()
        seen = await wait_for_prepare_event(
            node, "STILL_WORKING"
        )  # Half a second may pass before the plugin calls the driver.
        driver.block.set()
        await node.api.wait_running("pod")
        return seen


@produces("The runtime has CDI off")
async def cdi_off() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "etc/containerd/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
        return [f"{f.level} {f.topic}: {f.text}" for f in runtimes.look(Path(folder), Path("/var/run/cdi"), [])]


# --- Terminating ------------------------------------------------------------------------------------


@produces("The driver fails to unprepare")
async def unprepare_fails() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await node.run_pod()
        driver.fail_unprepare = RetryableError("the board is stuck")
        await node.api.delete("Pod", "pod")
        seen = await event_message(node.cluster, "pod", "UnprepareFailed")

        async def retry_output() -> str:
            found = await claims_command(node)
            return found if "times, next in" in found else ""

        seen.append(await node.cluster.wait("another attempt", retry_output))
        driver.fail_unprepare = None
        return seen


@produces("No plugin runs to unprepare")
async def no_plugin_to_unprepare() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        await node.stop()
        await node.api.delete("Pod", "pod")
        await event_message(node.cluster, "pod", "Killing")

        async def matching() -> str:
            pod = await node.api.get("Pod", "pod")
            assert pod
            states = [s["state"] for s in pod["status"]["containerStatuses"]]
            return await explanation(node.cluster) if all("terminated" in s for s in states) else ""

        seen: str = await node.cluster.wait("a pod that has ended but still exists", matching)
        pod = await node.api.get("Pod", "pod")
        await node.start()
        assert pod and pod["metadata"]["deletionTimestamp"]
        return [seen]


# --- the plugin is not ready ------------------------------------------------------------------------


@produces("The plugin does not run")
async def plugin_does_not_run() -> list[str]:
    with pytest.raises(SettingsError) as error:
        roots = {"kubelet_root": Path("/nowhere/kubelt"), "cdi_root": Path(os.environ["CDI_ROOT"])}
        Settings(driver_name="toy.example.com", node_name="node-1", **roots).check()
    seen = [str(error.value)]
    async with node_with(make_toy_class()) as node:
        second = DriverNode(node.cluster, make_toy_class(), node.settings)
        with pytest.raises(DraError) as busy:
            await second.start()
        return [*seen, str(busy.value)]


@produces("Not registered with the kubelet")
async def not_registered() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.kubelet.stop()
        node.plugin.paths.registration.unlink()
        seen = await wait_for_readiness_line(node, "not registered")
        await node.kubelet.start()
        return seen


@produces("Slices are not published or old")
async def slices_old() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node, node.api.outage():
        driver.count = 3
        node.plugin.driver.rescan()
        return await wait_for_readiness_line(node, "slices")


async def without_permissions(cluster: LocalCluster) -> ApiConfig:
    """Returns the configuration of a service account without a role."""
    await cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "npu"}})
    workload = {"metadata": {"namespace": "default"}, "spec": {"template": {"spec": {"serviceAccountName": "npu"}}}}
    return await config_of(cluster, workload, None)


@produces("A permission is missing")
async def no_permission() -> list[str]:
    async with LocalCluster() as cluster:
        settings = Settings(
            driver_name=Toy.name,
            node_name=cluster.node.name,
            kubelet_root=cluster.node.kubelet_root,
            cdi_root=cluster.node.cdi_root,
        )
        async with Plugin(make_toy_class()(), settings, await without_permissions(cluster)).running() as plugin:

            async def matching() -> list[str]:
                return [line for line in await plugin.not_ready() if "permitted" in line]

            found: list[str] = await cluster.wait("a fault", matching)
            return found


@produces("The API server is away")
async def api_server_unavailable() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        async with node.api.outage():
            response = await prepare_call(node, ref(claim))
            driver.count = 3
            node.plugin.driver.rescan()
            return [response.claims[claim["metadata"]["uid"]].error, *await wait_for_readiness_line(node, "slices")]


@produces("The driver does not return its devices")
async def scan_faults() -> list[str]:
    class FaultyScans(Toy):
        bind_notes, hangs = False, False

        async def devices(self) -> list[Device]:
            if type(self).bind_notes:
                raise OSError("the bus does not respond")
            if type(self).hangs:
                await asyncio.sleep(3600)
            return await super().devices()

    async with node_with(FaultyScans, discovery_timeout=0.2, rescan_interval=0.5) as node:
        FaultyScans.bind_notes = True
        node.plugin.driver.rescan()
        seen = await wait_for_readiness_line(node, "the bus does not respond")
        FaultyScans.bind_notes, FaultyScans.hangs = False, True
        return [*seen, *await wait_for_readiness_line(node, "has not returned")]


@produces("A device is missing from the slices")
async def device_not_published() -> list[str]:
    class WithUnknownCounter(Toy):
        async def devices(self) -> list[Device]:
            odd = Device("toy-9", consumes_counters={"card": {"slices": 1}})
            return [
                *await super().devices(),
                odd,
                Device("toy-10", attributes={"firmware": Version("6.19.14.31400000")}),
            ]

    async with node_with(WithUnknownCounter) as node:
        seen = await event_message(node.cluster, node.cluster.node.name, "DeviceNotPublished")
        return [*seen, *await wait_for_readiness_line(node, "toy-9")]


@produces("Health is unknown")
async def health_unknown() -> list[str]:
    class FailingHealth(Toy):
        def health(self) -> dict[str, Health]:
            raise OSError("the management interface does not respond")

    async with node_with(FailingHealth, health_interval=0.2) as node:
        return await wait_for_readiness_line(node, "health")


@produces("The driver blocks the event loop")
async def blocked_event_loop() -> list[str]:
    lines: list[str] = []
    first = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(TextFormatter().format(record).partition("cli.shell.loop_watchdog ")[2])
            first.set()

    async def prepare() -> None:
        first.wait(60)  # blocks like time.sleep in a driver
        while len(lines) < 2:
            await asyncio.sleep(0.01)

    async def main() -> None:
        loop_watchdog.watch(asyncio.get_running_loop())
        async with asyncio.timeout(60):
            await prepare()

    listener = Listener()
    loop_watchdog.log.addHandler(listener)
    try:
        await asyncio.to_thread(asyncio.run, main())
    finally:
        loop_watchdog.log.removeHandler(listener)
    return lines


@produces("No replica is the leader")
async def no_leader() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster, await without_permissions(cluster)) as controller:

        async def matching() -> list[str]:
            return [line for line in await controller.not_ready() if "forbidden" in line]

        found: list[str] = await cluster.wait("a fault", matching)
        return [*found, *(f"note: {n}" for n in await controller.notes())]


async def test_with_recover_a_damaged_first_line_needs_no_operator() -> None:
    class Recovering(Toy):
        async def recover(self) -> list[RecoveredClaim]:
            return [
                RecoveredClaim(uid=uid, devices=[PreparedDevice(request="", pool="node-1", name=n) for n in names])
                for uid, names in self.state.items()
            ]

    async with node_with(Recovering) as node:
        await node.run_pod("first")
        file = await record_file(node, "first")
        await node.stop()
        damage_head(file)
        remove_note(node, file)
        await node.start()
        await wait_for_readiness_line(node, f"1 claim reported by the driver: {file.stem}")
        await node.run_pod(count=3)
        assert await node.plugin.not_ready() == []
        (line,) = [line for line in (await claims_command(node)).splitlines() if file.stem in line]
        assert line.split()[1:] == ["?/?", file.stem, "Prepared", "toy-0", line.split()[-2], "recovered"]
        await node.delete_pod("first")
        await node.run_pod("last")
