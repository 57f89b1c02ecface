"""Each symptom of docs/troubleshooting.md is caused on a running cluster, and the page contains the observed text."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.testing import ClaimSpec, DriverNode, Request, node_with, pods
from dra_kubeletplugin import (
    CounterSet,
    Device,
    Driver,
    Health,
    Nodes,
    PermanentError,
    Pool,
    PreparedDevice,
    RecoveredClaim,
    RetryableError,
    Version,
)
from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.record import VERSION, encode_record
from dra_kubeletplugin.claims.store.records import file_name
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.shell import loop_watchdog
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.driver.class_validation import make
from dra_kubeletplugin.errors import DraError, SettingsError
from dra_kubeletplugin.kube import ApiConfig
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin
from dra_tools.doctor import runtimes
from packages.devkit.tests.packaging.manifests.deployed import config_of
from tests.docs.symptoms import PRODUCERS, event_message, explanation, missing_lines, produces, symptoms
from tests.helpers import objects
from tests.helpers.crash.record_stores import damage_body, records_locked, remove_records, set_version
from tests.helpers.drivers import HealthReportingDriver, Toy, make_toy_class
from tests.helpers.nimbus_n4 import HALF, ONE_CARD, Nimbus
from tests.helpers.node_steps import allocate, prepare_call, ref

PREPARE = "FailedPrepareDynamicResources"


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


async def apply_pod(node: DriverNode[Any], name: str = "pod") -> None:
    """Applies a pod as ``node.apply_pod`` does, but also while the plugin does not run."""
    await node.api.apply(pods.template("t", ClaimSpec(Request())), pods.pod(name, templates=["t"]))


async def wait_until(node: DriverNode[Any], what: str, check: Callable[[], object]) -> None:
    async def matching() -> object:
        return check()

    await node.cluster.wait(what, matching)


async def wait_for_readiness_line(node: DriverNode[Any], words: str) -> list[str]:
    """Waits until a line of /readyz contains ``words``. Returns all lines."""

    async def matching() -> list[str]:
        lines = [*await node.plugin.not_ready(), *(f"note: {n}" for n in await node.plugin.notes())]
        return lines if any(words in line for line in lines) else []

    found: list[str] = await node.cluster.wait(words, matching)
    return found


# --- Pending ----------------------------------------------------------------------------------------


async def pending(cluster: LocalCluster) -> list[str]:
    return [*await event_message(cluster, "pod", "FailedScheduling"), await explanation(cluster)]


@produces("No device is published for the node")
async def no_devices_published() -> list[str]:
    async with LocalCluster() as cluster:
        await cluster.apply(objects.device_class(), objects.template(), objects.pod("pod", templates=["t"]))
        return await pending(cluster)


@produces("No device matches the selector")
async def selector() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].index > 7')
        return await pending(node.cluster)


@produces("A selector names an attribute that a device lacks")
async def missing_attribute() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].profile == "2g"')
        return await pending(node.cluster)


@produces("Other claims hold the devices")
async def devices_held() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("first", count=4)
        await node.apply_pod()
        return await pending(node.cluster)


@produces("Its devices are tainted")
async def tainted() -> list[str]:
    class Unhealthy(HealthReportingDriver):
        report: ClassVar[dict[str, Health]] = {f"toy-{i}": Health(False, "hot") for i in range(4)}

    async with node_with(Unhealthy) as node:
        await wait_until(
            node, "taints", lambda: all(d.get("taints") for s in node.cluster.slices() for d in s["spec"]["devices"])
        )
        await node.apply_pod()
        return await pending(node.cluster)


class Parts(Driver):
    """Publishes a card with two counters, and a whole device that consumes both."""

    name = "parts.example.com"

    async def pools(self) -> list[Pool]:
        parts = [
            Device(n, consumes_counters={"card": {"slices": c}})
            for n, c in (("whole", 2), ("half-0", 1), ("half-1", 1))
        ]
        return [Pool(self.settings.node_name, parts, [CounterSet("card", {"slices": 2})])]

    async def prepare(self, claim: Any) -> Any:
        return [d.prepared() for d in claim.devices]


@produces("The counters are exhausted")
async def counters() -> list[str]:
    async with node_with(Parts) as node:
        await node.run_pod("first")
        await node.apply_pod()
        return await pending(node.cluster)


@produces("A claim's devices are on another node")
async def devices_on_another_node() -> list[str]:
    async with LocalCluster(nodes=["node-1", "node-2"]) as cluster:
        await cluster.apply(
            objects.device_class(),
            objects.slice_of("node-1", ["d0"]),
            objects.claim("shared"),
            objects.pod("first", claims=["shared"]),
        )
        await event_message(cluster, "first", "Scheduled")
        await cluster.apply(objects.pod("pod", claims=["shared"], nodeSelector={"kubernetes.io/hostname": "node-2"}))
        return await pending(cluster)


@produces("A pool is incomplete")
async def incomplete_pool() -> list[str]:
    async with LocalCluster() as cluster:
        first_slice = objects.slice_of("node-1", ["d0"])
        first_slice["spec"]["pool"]["resourceSliceCount"] = 2
        await cluster.apply(
            objects.device_class(), first_slice, objects.template(), objects.pod("pod", templates=["t"])
        )
        return await pending(cluster)


@produces("There is no such DeviceClass")
async def no_class() -> list[str]:
    async with LocalCluster() as cluster:
        await cluster.apply(objects.template(), objects.pod("pod", templates=["t"]))
        return await pending(cluster)


@produces("There is no such claim or template")
async def no_template() -> list[str]:
    async with LocalCluster() as cluster:
        await cluster.apply(objects.pod("pod", templates=["t"]))
        return [*await event_message(cluster, "pod", "FailedResourceClaimCreation"), await explanation(cluster)]


@produces("Admin access is not allowed here")
async def admin_access() -> list[str]:
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl on the PATH")
    async with LocalCluster() as cluster:
        cache = str(
            cluster.state / "kubectl"
        )  # The cache in the home folder may belong to another cluster with this port.
        await cluster.apply(objects.device_class())
        manifest = json.dumps(objects.template(spec=objects.claim_spec(admin=True))).encode()
        command = ("kubectl", "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", cache, "create", "-f", "-")
        kubectl = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, error = await kubectl.communicate(manifest)
        return [error.decode()]


class Remote(Driver):
    """Publishes a device that must be attached first."""

    name = "remote.example.com"
    bind_error: DraError = RetryableError("the switch does not respond")

    async def pools(self) -> list[Pool]:
        device = Device("r0", binding_conditions=["attached"], binding_failure_conditions=["failed"])
        return [Pool("fabric", [device], nodes=Nodes.all())] if self.role.value == "controller" else []

    async def bind(self, claim: Any) -> None:
        raise self.bind_error

    async def prepare(self, claim: Any) -> Any:
        return []


class PermanentlyFailing(Remote):
    """Publishes a device that can never be attached."""

    bind_error = PermanentError("the switch was removed")


@contextlib.asynccontextmanager
async def remote_controller(
    cluster: LocalCluster, config: ApiConfig | None = None, driver: type[Driver] = Remote
) -> AsyncIterator[Controller]:
    settings = ControllerSettings(
        driver_name=Remote.name, namespace="default", shutdown_grace_period=1.0, retry_period=0.1
    )
    async with Controller(make(driver, Role.CONTROLLER), settings, config or cluster.config).running() as running:
        yield running


@produces("Binding conditions stay false")
async def not_bound() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster) as controller:
        await controller.ready(60)
        await cluster.apply(
            objects.device_class(driver=Remote.name), objects.template(), objects.pod("pod", templates=["t"])
        )

        async def bind_notes() -> list[str]:
            return [f"note: {n}" for n in await controller.notes() if "switch" in n]

        notes: list[str] = await cluster.wait("a failing bind", bind_notes)
        return [*notes, await explanation(cluster), *await event_message(cluster, "pod", "BindingConditionsPending")]


@produces("Binding failed")
async def binding_failed() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster, driver=PermanentlyFailing) as controller:
        await controller.ready(20)
        await cluster.apply(
            objects.device_class(driver=Remote.name), objects.template(), objects.pod("pod", templates=["t"])
        )

        async def failed_explanation() -> str:
            text = await explanation(cluster)  # Between two attempts, the claim is not allocated.
            return text if "BindingFailed" in text.partition("Kubernetes says")[0] else ""

        text: str = await cluster.wait("a claim whose binding failed", failed_explanation)
        return [text, *await event_message(cluster, "pod", "FailedScheduling")]


# --- ContainerCreating ------------------------------------------------------------------------------


async def wait_for_prepare_event(node: DriverNode[Any], words: str, pod: str = "pod") -> list[str]:
    """Waits until an event of the kubelet contains ``words``. Returns the pod's events."""

    async def matching() -> list[str]:
        found = await event_message(node.cluster, pod, PREPARE)
        return found if any(words in line for line in found) else []

    seen: list[str] = await node.cluster.wait(f"an event with {words}", matching, timeout=40)
    return seen


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


async def claims_command(node: DriverNode[Any], *words: str) -> str:
    """Returns the output of ``dra claims`` on the node."""
    out, settings = io.StringIO(), node.plugin.settings
    options = [
        "--kubelet-root",
        str(settings.kubelet_root),
        "--cdi-root",
        str(settings.cdi_root),
        "--driver-name",
        settings.driver_name,
    ]
    with contextlib.redirect_stdout(out):
        await asyncio.to_thread(main, ["claims", *words, *options])
    return out.getvalue()


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


# --- records ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def log_of_records() -> Iterator[list[str]]:
    """Collects the log lines about repairs of the records."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, listener = logging.getLogger("dra_kubeletplugin.claims.store.folder"), Listener()
    logger.addHandler(listener)
    try:
        yield lines
    finally:
        logger.removeHandler(listener)


async def repair_reports(node: DriverNode[Any], words: str, event: str = "") -> list[str]:
    """Waits until /readyz contains ``words``, and an event of the node too, or ``event``. Returns the lines and the events."""
    seen = await wait_for_readiness_line(node, words)
    await node.plugin.claims.alerts.check()
    return [*seen, *await event_message(node.cluster, node.cluster.node.name, "RecordsDamaged", event or words)]


async def record_file(node: DriverNode[Any], pod: str = "pod") -> Path:
    claim = await node.claim_of(pod)
    return node.settings.records_path / file_name(claim["metadata"]["uid"])


def damage_head(file: Path) -> None:
    file.write_bytes(b"X" + file.read_bytes()[1:])


def remove_note(node: DriverNode[Any], file: Path) -> None:
    ClaimSpecs(node.settings.cdi_root, node.settings.driver_name).remove_note(file.stem)


@produces("A file of the records was damaged or removed")
async def damaged_and_removed_files() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod()
            damage_head(await record_file(node))
            seen = await repair_reports(node, "was damaged")
            (await record_file(node)).unlink()
            seen += await wait_for_readiness_line(node, "was removed")
            assert not await node.plugin.not_ready()
    return [*log, *seen]


@produces("The folder of the records was removed")
async def removed_folder() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod("first")
            await node.run_pod()
            remove_records(node.settings.records_path)
            seen = await repair_reports(node, "lost and written again")
            await node.run_pod("third")
    return [*log, *seen]


@produces("The first line of a file is damaged")
async def head_damaged_without_a_copy() -> list[str]:
    with log_of_records() as log:
        async with node_with(make_toy_class()) as node:
            await node.run_pod("first")
            file = await record_file(node, "first")
            await node.stop()
            damage_head(file)
            remove_note(node, file)
            await node.start()
            seen = await repair_reports(node, "has no recover()", event="has no copy")
            await node.apply_pod()
            seen += [*await wait_for_prepare_event(node, "HARDWARE_UNKNOWN"), await claims_command(node)]
            seen += [line for line in node.plugin.metrics.text().decode().splitlines() if "damaged_total" in line]
            assert "forgotten" in await claims_command(node, "forget", file.stem, "--yes")
            await node.api.wait_running("pod")
    return [*log, *seen]


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


@produces("One record cannot be read")
async def unreadable_record() -> list[str]:
    driver = make_toy_class()
    driver.count = 1
    async with node_with(driver) as node:
        await node.run_pod()
        file = await record_file(node)
        await node.stop()
        damage_body(node.settings.records_path, file.stem)
        remove_note(node, file)
        await node.start()
        await node.plugin.claims.alerts.check()
        seen = [*await event_message(node.cluster, "pod", "RecordUnreadable"), await claims_command(node)]
        claim = await node.claim_of("pod")
        await node.api.remove("Pod", "pod")
        await node.api.remove("ResourceClaim", claim["metadata"]["name"])
        await apply_pod(node, "second")
        seen += await wait_for_prepare_event(node, "DEVICE_HELD", "second")
        assert "forgotten" in await claims_command(node, "forget", file.stem, "--yes")
        await node.api.wait_running("second")
        return seen


@produces("Two claims have one device")
async def two_claims_with_one_device() -> list[str]:
    driver = make_toy_class()
    with log_of_records() as log:
        async with node_with(driver) as node:
            await node.run_pod()
            (record,) = await node.plugin.claims.store.all()
            await node.stop()
            newer = msgspec.structs.replace(
                record, uid="00000000-0000-0000-0000-000000000001", created=record.created + 1
            )
            path = node.settings.records_path / file_name(newer.uid)
            path.write_bytes(encode_record(newer, newer.holds()))
            await node.start()
            seen = await repair_reports(node, "two claims")
            assert [r.uid for r in await node.plugin.claims.store.all()] == [record.uid]
            assert ("unprepare", newer.uid) not in driver.calls
    return [*log, *seen]


@produces("Records cannot be written")
async def records_busy() -> list[str]:
    async with node_with(make_toy_class(), lock_timeout=0.3) as node:
        with records_locked(node.settings.records_path):
            await node.apply_pod()
            seen = await event_message(node.cluster, "pod", PREPARE)
        await node.api.wait_running("pod")
        return seen


@produces("The driver cannot read the state of its hardware")
async def recover_fails() -> list[str]:
    class FailingRecover(Toy):
        async def recover(self) -> Any:
            raise OSError("the board does not respond")

    async with node_with(FailingRecover) as node:  # There are no records yet, and the state of the hardware is unknown.
        seen = await wait_for_readiness_line(node, "recover()")
        await node.apply_pod()
        return [*seen, *await event_message(node.cluster, "pod", PREPARE)]


@produces("A newer version wrote a record")
async def newer_record() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("old")
        file = await record_file(node, "old")
        await node.stop()
        set_version(node.settings.records_path, file.stem, VERSION + 1)
        await node.start()
        await node.run_pod()  # Other claims are not affected.
        await node.plugin.claims.alerts.check()
        return [*await event_message(node.cluster, "old", "RecordUnreadable"), await claims_command(node)]


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
