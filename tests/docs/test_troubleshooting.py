"""Each symptom of docs/troubleshooting.md is made here, on a cluster that runs, and what is seen then stands in the page."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dra_kubeletplugin import CounterSet, Device, Driver, Health, Nodes, PermanentError, Pool, RetryableError
from dra_kubeletplugin.analysis.doctor import runtimes
from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.base.telemetry.logs import TextFormatter
from dra_kubeletplugin.claims.store.lines import FORMAT
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.cli.shell import loop_watchdog
from dra_kubeletplugin.driver import Role
from dra_kubeletplugin.driver.class_validation import make
from dra_kubeletplugin.errors import DraError, SettingsError
from dra_kubeletplugin.kube import ApiConfig
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.plugin.controller.controller import Controller
from dra_kubeletplugin.plugin.node import Plugin
from dra_kubeletplugin.testing import ClaimSpec, DriverNode, Request, node_with, pods
from tests.docs.symptoms import PRODUCERS, event_message, explanation, missing_lines, produces, symptoms
from tests.helpers import objects
from tests.helpers.crash.record_stores import append_body, records_locked, set_format
from tests.helpers.drivers import HealthReportingDriver, Toy, make_toy_class
from tests.helpers.nimbus_n4 import HALF, ONE_CARD, Nimbus
from tests.packaging.manifests.deployed import config_of
from tests.plugin.test_node import allocate, prepare_call, ref

PREPARE = "FailedPrepareDynamicResources"


@pytest.mark.cases(12)
@pytest.mark.parametrize("heading", symptoms())
async def test_what_the_page_shows_of_a_symptom_is_seen_when_it_is_there(heading: str) -> None:
    promised = symptoms()[heading]
    assert promised, "each symptom shows a text"
    seen = await PRODUCERS[heading]()
    assert missing_lines(promised, seen) == [], "seen was:\n" + "\n".join(seen)


def test_every_symptom_that_is_made_is_in_the_page() -> None:
    assert PRODUCERS.keys() == symptoms().keys()


def test_a_line_that_nobody_states_is_found() -> None:
    assert missing_lines(["a <name> b", "c ..."], ["a x b", "c d e"]) == []
    assert missing_lines(["a <name> b"], ["a b", "a x bc"]) == ["a <name> b"]


async def apply_pod(node: DriverNode[Any], spec: ClaimSpec | None = None) -> None:
    """As the node's, also while the plugin is down."""
    await node.api.apply(pods.template("t", spec or ClaimSpec(Request())), pods.pod("pod", templates=["t"]))


async def true(node: DriverNode[Any], what: str, check: Callable[[], object]) -> None:
    async def so() -> object:
        return check()

    await node.cluster.wait(what, so)


async def unready(node: DriverNode[Any], words: str) -> list[str]:
    """The lines of /readyz, once they have these words."""

    async def so() -> list[str]:
        lines = [*await node.plugin.not_ready(), *(f"note: {n}" for n in await node.plugin.notes())]
        return lines if any(words in line for line in lines) else []

    found: list[str] = await node.cluster.wait(words, so)
    return found


# --- Pending ----------------------------------------------------------------------------------------


async def pending(cluster: LocalCluster) -> list[str]:
    return [*await event_message(cluster, "pod", "FailedScheduling"), await explanation(cluster)]


@produces("No device is published for the node")
async def nothing_published() -> list[str]:
    async with LocalCluster() as cluster:
        await cluster.apply(objects.device_class(), objects.template(), objects.pod("pod", templates=["t"]))
        return await pending(cluster)


@produces("No device matches the selector")
async def selector() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].index > 7')
        return await pending(node.cluster)


@produces("A selector names an attribute that a device lacks")
async def absent() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(selector='device.attributes["toy.example.com"].profile == "2g"')
        return await pending(node.cluster)


@produces("Other claims hold the devices")
async def held() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod("first", count=4)
        await node.apply_pod()
        return await pending(node.cluster)


@produces("Its devices are tainted")
async def tainted() -> list[str]:
    class Ill(HealthReportingDriver):
        report: ClassVar[dict[str, Health]] = {f"toy-{i}": Health(False, "hot") for i in range(4)}

    async with node_with(Ill) as node:
        await true(
            node, "taints", lambda: all(d.get("taints") for s in node.cluster.slices() for d in s["spec"]["devices"])
        )
        await node.apply_pod()
        return await pending(node.cluster)


class Parts(Driver):
    """A card with two slices, of which a whole takes both."""

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
async def elsewhere() -> list[str]:
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
async def half_a_pool() -> list[str]:
    async with LocalCluster() as cluster:
        half = objects.slice_of("node-1", ["d0"])
        half["spec"]["pool"]["resourceSliceCount"] = 2
        await cluster.apply(objects.device_class(), half, objects.template(), objects.pod("pod", templates=["t"]))
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
        cache = str(cluster.state / "kubectl")  # what is kept at home may be of another cluster at this port
        await cluster.apply(objects.device_class())
        asked = json.dumps(objects.template(spec=objects.claim_spec(admin=True))).encode()
        command = ("kubectl", "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", cache, "create", "-f", "-")
        kubectl = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        _, refused = await kubectl.communicate(asked)
        return [refused.decode()]


class Remote(Driver):
    """A device that has to be attached first."""

    name = "remote.example.com"
    bind_error: DraError = RetryableError("the switch does not answer")

    async def pools(self) -> list[Pool]:
        device = Device("r0", binding_conditions=["attached"], binding_failure_conditions=["failed"])
        return [Pool("fabric", [device], nodes=Nodes.all())] if self.role.value == "controller" else []

    async def bind(self, claim: Any) -> None:
        raise self.bind_error

    async def prepare(self, claim: Any) -> Any:
        return []


class Gone(Remote):
    """One that can never be attached."""

    bind_error = PermanentError("the switch is gone")


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

        async def fails() -> list[str]:
            return [f"note: {n}" for n in await controller.notes() if "switch" in n]

        notes: list[str] = await cluster.wait("a bind that fails", fails)
        return [*notes, await explanation(cluster), *await event_message(cluster, "pod", "BindingConditionsPending")]


@produces("Binding failed")
async def bind_refused() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster, driver=Gone) as controller:
        await controller.ready(20)
        await cluster.apply(
            objects.device_class(driver=Remote.name), objects.template(), objects.pod("pod", templates=["t"])
        )

        async def failed() -> str:
            text = await explanation(cluster)  # between two tries it is not allocated
            return text if "BindingFailed" in text.partition("Kubernetes says")[0] else ""

        text: str = await cluster.wait("a claim whose binding failed", failed)
        return [text, *await event_message(cluster, "pod", "FailedScheduling")]


# --- ContainerCreating ------------------------------------------------------------------------------


async def prepare_refused(node: DriverNode[Any], words: str, pod: str = "pod") -> list[str]:
    """The pod's events, once one that its kubelet made has these words."""

    async def so() -> list[str]:
        found = await event_message(node.cluster, pod, PREPARE)
        return found if any(words in line for line in found) else []

    seen: list[str] = await node.cluster.wait(f"an event with {words}", so, timeout=40)
    return seen


@produces("No plugin responds to the kubelet")
async def nobody_answers() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.stop()
        await apply_pod(node)
        return [*await prepare_refused(node, "is not registered"), await explanation(node.cluster)]


@produces("The driver fails to prepare")
async def prepare_fails() -> list[str]:
    driver = make_toy_class()
    driver.fail = OSError("the board does not answer")
    async with node_with(driver) as node:
        await node.apply_pod()
        return await event_message(node.cluster, "pod", PREPARE)


@produces("The parameters are wrong")
async def wrong_parameters() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.apply_pod(parameters={"colour": "green"})
        return await event_message(node.cluster, "pod", PREPARE)


async def leaked(node: DriverNode[Toy]) -> None:
    """A claim that is gone from the API server, and whose devices cannot be freed."""
    await node.run_pod("first", count=4)
    claim = await node.claim_of("first")
    node.driver_class.fail_unprepare = RetryableError("the board is stuck")
    await node.api.remove("Pod", "first")
    await node.api.remove("ResourceClaim", claim["metadata"]["name"])


@produces("A deleted claim still holds the device")
async def still_held() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        await leaked(node)
        await node.apply_pod()
        seen = await event_message(node.cluster, "pod", PREPARE)
        driver.fail_unprepare = None
        return seen


@produces("The card is in another state")
async def other_state() -> list[str]:
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
        return await prepare_refused(node, "DEVICE_GONE")


@produces("Preparing takes long")
async def slow_prepare() -> list[str]:
    driver = make_toy_class()
    driver.block = asyncio.Event()
    async with node_with(driver, call_timeout=0.5) as node:
        await node.apply_pod()
        seen = await prepare_refused(node, "STILL_WORKING")  # half a second may pass before the driver is asked
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

        async def tried_again() -> str:
            found = await claims_command(node)
            return found if "times, next in" in found else ""

        seen.append(await node.cluster.wait("another try", tried_again))
        driver.fail_unprepare = None
        return seen


async def claims_command(node: DriverNode[Any]) -> str:
    """What ``dra claims`` prints on the node."""
    out, own = io.StringIO(), node.plugin.settings
    options = [
        "--kubelet-root",
        str(own.kubelet_root),
        "--cdi-root",
        str(own.cdi_root),
        "--driver-name",
        own.driver_name,
    ]
    with contextlib.redirect_stdout(out):
        await asyncio.to_thread(main, ["claims", *options])
    return out.getvalue()


@produces("No plugin runs to unprepare")
async def nobody_unprepares() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        await node.stop()
        await node.api.delete("Pod", "pod")
        await event_message(node.cluster, "pod", "Killing")

        async def so() -> str:
            pod = await node.api.get("Pod", "pod")
            assert pod
            states = [s["state"] for s in pod["status"]["containerStatuses"]]
            return await explanation(node.cluster) if all("terminated" in s for s in states) else ""

        seen: str = await node.cluster.wait("a pod that has ended and stays", so)
        pod = await node.api.get("Pod", "pod")
        await node.start()
        assert pod and pod["metadata"]["deletionTimestamp"]
        return [seen]


# --- the plugin is not ready ------------------------------------------------------------------------


@produces("The plugin does not run")
async def does_not_run() -> list[str]:
    with pytest.raises(SettingsError) as refused:
        Settings(driver_name="toy.example.com", node_name="node-1", kubelet_root=Path("/var/lib/kubelt")).check()
    seen = [str(refused.value)]
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
        seen = await unready(node, "not registered")
        await node.kubelet.start()
        return seen


@produces("Slices are not published or old")
async def slices_old() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node, node.api.outage():
        driver.count = 3
        node.plugin.driver.changed()
        return await unready(node, "slices")


async def without_permissions(cluster: LocalCluster) -> ApiConfig:
    """The API server as an account meets it that nobody gave a role."""
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

            async def so() -> list[str]:
                return [line for line in await plugin.not_ready() if "permitted" in line]

            found: list[str] = await cluster.wait("a fault", so)
            return found


@produces("The API server is away")
async def api_away() -> list[str]:
    driver = make_toy_class()
    async with node_with(driver) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        async with node.api.outage():
            answer = await prepare_call(node, ref(claim))
            driver.count = 3
            node.plugin.driver.changed()
            return [answer.claims[claim["metadata"]["uid"]].error, *await unready(node, "slices")]


@produces("The driver does not return its devices")
async def scan_faults() -> list[str]:
    class Odd(Toy):
        fails, hangs = False, False

        async def devices(self) -> list[Device]:
            if type(self).fails:
                raise OSError("the bus is gone")
            if type(self).hangs:
                await asyncio.sleep(3600)
            return await super().devices()

    async with node_with(Odd, discovery_timeout=0.2, rescan_interval=0.5) as node:
        Odd.fails = True
        node.plugin.driver.changed()
        seen = await unready(node, "the bus is gone")
        Odd.fails, Odd.hangs = False, True
        return [*seen, *await unready(node, "has not returned")]


@produces("A device is missing from the slices")
async def left_out() -> list[str]:
    class Long(Toy):
        async def devices(self) -> list[Device]:
            return [*await super().devices(), Device("toy-9", consumes_counters={"card": {"slices": 1}})]

    async with node_with(Long) as node:
        seen = await event_message(node.cluster, node.cluster.node.name, "DeviceNotPublished")
        return [*seen, *await unready(node, "toy-9")]


@produces("Health is unknown")
async def health_unknown() -> list[str]:
    class Mute(Toy):
        def health(self) -> dict[str, Health]:
            raise OSError("the management interface is gone")

    async with node_with(Mute, health_interval=0.2) as node:
        return await unready(node, "health")


# --- records ----------------------------------------------------------------------------------------


@produces("The journal was set aside")
async def set_aside() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        await node.stop()
        node.settings.records_path.write_bytes(b"nonsense" * 1000)
        await node.start()
        seen = await unready(node, "rebuilt")
        await node.plugin.claims.alerts.check()
        return [*seen, *await event_message(node.cluster, node.cluster.node.name, "RecordsSetAside")]


@produces("One record cannot be read")
async def one_record() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        (record,) = await node.plugin.claims.store.all()
        append_body(node.settings.records_path, record, b"nonsense")
        await node.plugin.claims.alerts.check()
        return await event_message(node.cluster, "pod", "RecordUnreadable")


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
    class Forgetful(Toy):
        async def recover(self) -> Any:
            raise OSError("the board does not answer")

    async with node_with(Forgetful) as node:  # there are no records yet, and what the hardware has is not known
        seen = await unready(node, "recover()")
        await node.apply_pod()
        return [*seen, *await event_message(node.cluster, "pod", PREPARE)]


@produces("The records are newer than the plugin")
async def newer_records() -> list[str]:
    async with node_with(make_toy_class()) as node:
        await node.stop()
        set_format(node.settings.records_path, FORMAT + 2)
        await node.start()
        return await unready(node, "format")


@produces("The driver blocks the event loop")
async def held_loop() -> list[str]:
    said: list[str] = []
    first = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(TextFormatter().format(record).partition("cli.shell.loop_watchdog ")[2])
            first.set()

    async def prepare() -> None:
        first.wait(60)  # an author's time.sleep
        while len(said) < 2:
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
    return said


@produces("No replica is the leader")
async def nobody_leads() -> list[str]:
    async with LocalCluster() as cluster, remote_controller(cluster, await without_permissions(cluster)) as controller:

        async def so() -> list[str]:
            return [line for line in await controller.not_ready() if "forbidden" in line]

        found: list[str] = await cluster.wait("a fault", so)
        return [*found, *(f"note: {n}" for n in await controller.notes())]
