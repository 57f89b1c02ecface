"""Tests pods of ``dra dev``: real containers with --containers, and simulated containers without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.dev_process import GPU, DevProcess, run_dev
from tests.helpers.gpu_objects import CLASS, TEMPLATE, pod
from tests.helpers.waiting import block_until

pytestmark = pytest.mark.kubectl


def apply(dev: DevProcess, *objects: dict[str, Any]) -> None:
    dev.kubectl("create", "-f", "-", stdin="\n".join(map(json.dumps, objects)))


def status(dev: DevProcess, name: str) -> Any:
    return json.loads(dev.kubectl("get", "pod", name, "-o", "json")).get("status", {})


def main(dev: DevProcess, name: str) -> Any:
    return next(iter(status(dev, name).get("containerStatuses", [])), {"state": {}, "restartCount": 0})


def reached(dev: DevProcess, name: str, phase: str) -> Any:
    return block_until(lambda: (s := status(dev, name)).get("phase") == phase and s)


def claims_are_gone(dev: DevProcess) -> bool:
    return not json.loads(dev.kubectl("get", "resourceclaims", "-o", "json"))["items"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    with run_dev(tmp_path_factory.mktemp("dev"), GPU, "--containers", "--no-reload") as dev:
        apply(dev, CLASS, TEMPLATE)
        yield dev


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevProcess]:
    with run_dev(tmp_path_factory.mktemp("dev"), GPU, "--no-reload") as dev:
        apply(dev, CLASS, TEMPLATE)
        yield dev


@pytest.mark.runc
def test_a_pod_runs_with_its_device_and_releases_it_at_its_end(real: DevProcess) -> None:
    script = "env | grep -c ^GPU_DEVICE_; echo why > /dev/termination-log"
    apply(real, pod("once", script))
    ended = reached(real, "once", "Succeeded")["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "why\n")
    assert int(real.kubectl("logs", "once")) >= 2
    block_until(lambda: claims_are_gone(real))
    real.kubectl("delete", "pod", "once")


@pytest.mark.runc
def test_a_failed_container_is_restarted_if_the_restart_policy_requires_it(real: DevProcess) -> None:
    apply(real, pod("again", "cat /proc/sys/kernel/random/uuid; exit 3", restart="OnFailure"), pod("failed", "exit 4"))
    assert reached(real, "failed", "Failed")["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
    block_until(lambda: main(real, "again")["restartCount"] >= 1 and "waiting" in main(real, "again")["state"])
    assert main(real, "again")["lastState"]["terminated"]["exitCode"] == 3

    def both() -> bool:
        """Compares both logs. The container can be restarted between the two calls, so a wait repeats the comparison."""
        last, before = (real.kubectl("logs", "again", *options) for options in ((), ("--previous",)))
        return len(last) == len(before) == 37 and last != before

    block_until(both)
    real.kubectl("delete", "pod", "again", "failed")


@pytest.mark.runc
def test_init_containers_end_before_the_main_container_starts_and_exec_works(real: DevProcess) -> None:
    init = {"name": "first", "image": "busybox", "command": ["sh", "-c", "echo first > /data/order"]}
    mounts = [{"name": "data", "mountPath": "/data"}]
    manifest = pod("order", "echo second >> /data/order; trap 'exit 0' TERM; while :; do sleep 0.05; done")
    manifest["spec"]["containers"][0]["volumeMounts"] = mounts
    manifest["spec"] |= {
        "initContainers": [init | {"volumeMounts": mounts}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    apply(real, manifest)
    reached(real, "order", "Running")
    block_until(lambda: real.kubectl("exec", "order", "--", "cat", "/data/order") == "first\nsecond\n")
    assert "gpu-" in real.kubectl("exec", "order", "--", "env")
    real.kubectl("delete", "pod", "order")
    block_until(lambda: claims_are_gone(real))


@pytest.mark.runc
@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        (
            "path",
            {"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]},
            "hostPath /etc: containers here cannot see",
        ),
        ("net", {"hostNetwork": True}, "hostNetwork: containers here have their own network"),
        ("image", {}, 'image "nowhere/image:1" is not on this machine'),
    ],
)
def test_unsupported_settings_of_a_pod_are_reported_in_its_events(
    real: DevProcess, name: str, spec: dict[str, Any], expected: str
) -> None:
    manifest = pod(name, "true", image="nowhere/image:1" if name == "image" else "busybox", **spec)
    if "volumes" in spec:
        manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/host"}]
    apply(real, manifest)
    block_until(lambda: expected in real.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}"))
    assert status(real, name)["phase"] == "Pending"
    assert "started" not in json.dumps(real.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}"))
    real.kubectl("delete", "pod", name)


@pytest.mark.runc
def test_a_privileged_pod_is_not_started(real: DevProcess) -> None:
    manifest = pod("root", "true")
    manifest["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    apply(real, manifest)
    block_until(
        lambda: "refuses privileged" in real.kubectl("get", "events", "--field-selector", "involvedObject.name=root")
    )
    block_until(lambda: main(real, "root")["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError")
    real.kubectl("delete", "pod", "root")


@pytest.mark.runc
def test_a_pod_reaches_its_nodes_folders_and_the_api_server_like_the_pod_of_a_driver(real: DevProcess) -> None:
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    script = f"""
        cd /var/lib/kubelet && ls > /var/run/cdi/seen && cat {account}/namespace
        test -s {account}/token && nc $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo reached
        touch /host/dev/x || echo read-only"""
    manifest = pod("plugin", script)
    paths = {"kubelet": "/var/lib/kubelet", "cdi": "/var/run/cdi", "dev": "/dev"}
    mounts = [{"name": n, "mountPath": "/host/dev" if n == "dev" else p} for n, p in paths.items()]
    manifest["spec"]["containers"][0]["volumeMounts"] = mounts
    volumes = [{"name": n, "hostPath": {"path": p, "type": "Directory"}} for n, p in paths.items()]
    manifest["spec"] |= {"automountServiceAccountToken": True, "volumes": volumes}
    apply(real, manifest)
    reached(real, "plugin", "Succeeded")
    assert [line for line in real.kubectl("logs", "plugin").splitlines() if "touch" not in line] == [
        "defaultreached",
        "read-only",
    ]
    assert "plugins_registry" in (real.state / "node-1/cdi/seen").read_text().split()
    (real.state / "node-1/cdi/seen").unlink()
    real.kubectl("delete", "pod", "plugin")


@pytest.mark.runc
def test_a_rebooted_node_runs_its_pods_again(real: DevProcess) -> None:
    apply(real, pod("server", "trap 'exit 0' TERM; while :; do sleep 0.05; done", restart="Always"))
    reached(real, "server", "Running")
    before = main(real, "server")["containerID"]
    real.verb("reboot-node")
    block_until(lambda: "running" in (now := main(real, "server"))["state"] and now["containerID"] != before)
    real.kubectl("delete", "pod", "server")
    block_until(lambda: claims_are_gone(real))


# --- simulated --------------------------------------------------------------------------------------------


def test_the_log_of_a_simulated_pod_shows_the_injected_environment(simulated: DevProcess) -> None:
    apply(simulated, pod("server", "serve", restart="Always"))
    reached(simulated, "server", "Running")
    log = simulated.kubectl("logs", "server")
    assert "This container is simulated" in log and "\n  GPU_DEVICE_0=gpu-" in log.partition("environment injected:")[2]
    refused = simulated.kubectl("exec", "server", "--", "true", check=False)
    assert "containers are simulated here" in refused and "dra dev --containers" in refused
    assert main(simulated, "server")["containerID"].startswith("simulated://")
    simulated.verb("exit-container", "server", "--exit-code", "9")
    block_until(lambda: main(simulated, "server").get("lastState", {}).get("terminated", {}).get("exitCode") == 9)
    assert "has no started container 'x'" in simulated.verb("exit-container", "server", "-c", "x")
    simulated.kubectl("delete", "pod", "server")


def test_simulated_pods_end_as_their_annotations_specify(simulated: DevProcess) -> None:
    prefix = "simulated.dra-kubeletplugin.dev"
    quick, failing = pod("quick", "nvidia-smi"), pod("failing", "train", restart="OnFailure")
    quick["metadata"]["annotations"] = {f"{prefix}/duration": "10ms"}
    failing["metadata"]["annotations"] = {f"{prefix}/duration": "10ms", f"{prefix}/exit-code": "1,0"}
    apply(simulated, quick, failing)
    reached(simulated, "quick", "Succeeded")
    reached(simulated, "failing", "Succeeded")
    assert main(simulated, "failing")["restartCount"] == 1
    block_until(lambda: claims_are_gone(simulated))


def job(name: str, command: list[str], annotations: dict[str, str] | None = None) -> dict[str, Any]:
    pod_spec = pod(name, "")["spec"] | {"restartPolicy": "Never"}
    pod_spec["containers"][0]["command"] = command
    template = {"metadata": {"annotations": annotations or {}}, "spec": pod_spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, "backoffLimit": 1},
    }


def finished(dev: DevProcess, name: str) -> Any:
    found = json.loads(dev.kubectl("get", "job", name, "-o", "json")).get("status", {})
    return [
        c["type"]
        for c in found.get("conditions") or []
        if c["status"] == "True" and c["type"] in {"Complete", "Failed"}
    ]


@pytest.mark.full
def test_jobs_complete_or_fail_with_their_simulated_containers(simulated: DevProcess) -> None:
    prefix = "simulated.dra-kubeletplugin.dev"
    short = {f"{prefix}/duration": "10ms"}
    apply(simulated, job("good", ["train"], short), job("bad", ["train"], short | {f"{prefix}/exit-code": "2"}))
    assert block_until(lambda: finished(simulated, "good")) == ["Complete"]
    assert block_until(lambda: finished(simulated, "bad")) == ["Failed"]
    block_until(lambda: claims_are_gone(simulated))


@pytest.mark.runc
def test_jobs_complete_with_their_containers(real: DevProcess) -> None:
    apply(real, job("work", ["sh", "-c", "env | grep ^GPU_DEVICE_0="]))
    assert block_until(lambda: finished(real, "work")) == ["Complete"]
    assert real.kubectl("logs", "job/work").startswith("GPU_DEVICE_0=gpu-")
    block_until(lambda: claims_are_gone(real))
