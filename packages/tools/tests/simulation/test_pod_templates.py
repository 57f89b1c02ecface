"""Pod templates are found by shape in objects of any kind. Each object is counted, or named with the reason."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.errors import QuestionError
from dra_tools import Simulation, Snapshot, simulate
from packages.tools.tests.objects import TEMPLATE, cluster, node
from tests.tools.tree import ROOT

CLAIMS = [{"name": "e", "resourceClaimTemplateName": "t"}]
POD_SPEC = {
    "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "e"}]}}],
    "resourceClaims": CLAIMS,
}
PLAIN = {"containers": [{"name": "main", "image": "x"}]}
POD = {"metadata": {"labels": {"app": "w"}}, "spec": POD_SPEC}
LAUNCHER = {"spec": PLAIN}


def obj(api_version: str, kind: str, spec: JSON) -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


def job(n: int, m: int, template: JSON = POD) -> JSON:
    return {"spec": {"parallelism": n, "completions": n + m, "template": template}}


# Each case has the object for two numbers, and the number of its pods.
COUNTED: dict[str, tuple[Callable[[int, int], JSON], Callable[[int, int], int]]] = {
    "LeaderWorkerSet": (
        lambda n, m: obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {
            "replicas": n, "leaderWorkerTemplate": {"size": m, "workerTemplate": POD, "subGroupPolicy": {"subGroupSize": 2}},
        }),
        lambda n, m: n * m,
    ),
    "LeaderWorkerSet with a leader": (
        lambda n, m: obj("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {
            "replicas": n, "leaderWorkerTemplate": {"size": m, "workerTemplate": POD, "leaderTemplate": LAUNCHER},
        }),
        lambda n, m: n * m,
    ),
    "MPIJob": (
        lambda n, m: obj("kubeflow.org/v2beta1", "MPIJob", {
            "slotsPerWorker": 8, "mpiReplicaSpecs": {"Launcher": {"template": LAUNCHER}, "Worker": {"replicas": n, "template": POD}},
        }),
        lambda n, m: n + 1,
    ),
    "PyTorchJob": (
        lambda n, m: obj("kubeflow.org/v1", "PyTorchJob", {
            "nprocPerNode": "8", "pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": POD}, "Worker": {"replicas": n, "template": POD}},
        }),
        lambda n, m: n + 1,
    ),
    "RayCluster": (
        lambda n, m: obj("ray.io/v1", "RayCluster", {
            "headGroupSpec": {"rayStartParams": {}, "template": LAUNCHER},
            "workerGroupSpecs": [
                {"groupName": "a", "replicas": n, "minReplicas": 0, "maxReplicas": 99, "template": POD},
                {"groupName": "b", "replicas": 2, "numOfHosts": m, "template": POD},
            ],
        }),
        lambda n, m: 1 + n + 2 * m,
    ),
    "RayJob": (
        lambda n, m: obj("ray.io/v1", "RayJob", {
            "submitterPodTemplate": LAUNCHER,
            "rayClusterSpec": {"headGroupSpec": {"template": LAUNCHER}, "workerGroupSpecs": [{"minReplicas": n, "template": POD}]},
        }),
        lambda n, m: 2 + n,
    ),
    "JobSet": (
        lambda n, m: obj("jobset.x-k8s.io/v1alpha2", "JobSet", {
            "replicatedJobs": [{"name": "w", "replicas": n, "template": job(m, 0)}, {"name": "one", "template": job(1, m)}],
            "successPolicy": {"operator": "All"},
        }),
        lambda n, m: n * m + 1,
    ),
    "InferenceService with containers": (
        lambda n, m: obj("serving.kserve.io/v1beta1", "InferenceService", {
            "predictor": {**POD_SPEC, "minReplicas": n, "maxReplicas": n}, "transformer": {**PLAIN, "minReplicas": m},
        }),
        lambda n, m: n + m,
    ),
    "Volcano Job": (
        lambda n, m: obj("batch.volcano.sh/v1alpha1", "Job", {
            "minAvailable": n, "tasks": [{"name": "a", "replicas": n, "template": POD}, {"name": "b", "replicas": m, "template": LAUNCHER}],
        }),
        lambda n, m: n + m,
    ),
    "Rollout": (
        lambda n, m: obj("argoproj.io/v1alpha1", "Rollout", {"replicas": n, "strategy": {"canary": {}}, "template": POD}),
        lambda n, m: n,
    ),
    "AppWrapper": (
        lambda n, m: obj("workload.codeflare.dev/v1beta2", "AppWrapper", {
            "components": [{"template": {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, **job(n, m)}}],
        }),
        lambda n, m: n,
    ),
    "kind with minMember": (
        lambda n, m: obj("example.com/v1", "Gang", {"minMember": n, "groups": [{"groupSize": m, "podTemplate": POD}]}),
        lambda n, m: n * m,
    ),
    "SparkApplication with templates": (
        lambda n, m: obj("sparkoperator.k8s.io/v1beta2", "SparkApplication", {
            "driver": {"cores": 1, "template": LAUNCHER}, "executor": {"instances": n, "template": POD},
        }),
        lambda n, m: n + 1,
    ),
}  # fmt: skip
NAMED: dict[str, tuple[JSON, str]] = {
    "VirtualMachineInstance": (
        obj("kubevirt.io/v1", "VirtualMachineInstance", {"resourceClaims": CLAIMS, "domain": {"devices": {"gpus": [{"name": "g"}]}}}),
        "spec has resourceClaims and no containers",
    ),
    "VirtualMachine": (
        obj("kubevirt.io/v1", "VirtualMachine", {"template": {"spec": {"resourceClaims": CLAIMS, "domain": {}}}}),
        "spec.template.spec has resourceClaims and no containers",
    ),
    "InferenceService with a model": (
        obj("serving.kserve.io/v1beta1", "InferenceService", {
            "predictor": {"minReplicas": 3, "model": {"modelFormat": {"name": "x"}, "resources": {"limits": {"cpu": "1"}}}},
        }),
        "spec.predictor.model describes a container outside of a pod template",
    ),
    "Workflow": (
        obj("argoproj.io/v1alpha1", "Workflow", {"entrypoint": "a", "templates": [{"name": "a", "container": {"image": "x"}}]}),
        "spec.templates[0].container describes a container outside of a pod template",
    ),
    "Workflow with a container set": (
        obj("argoproj.io/v1alpha1", "Workflow", {"templates": [{"name": "a", "containerSet": PLAIN}]}),
        "the number of pods of spec.templates[0].containerSet is decided when it runs",
    ),
    "SparkApplication": (
        obj("sparkoperator.k8s.io/v1beta2", "SparkApplication", {"image": "x", "driver": {"cores": 1}, "executor": {"instances": 2}}),
        "spec.executor.instances, which is not evaluated",
    ),
    "WorkflowTemplate": (
        obj("argoproj.io/v1alpha1", "WorkflowTemplate", {"podTemplate": POD}),
        "other objects decide how many pods",
    ),
    "LLMInferenceService": (
        obj("serving.kserve.io/v1alpha1", "LLMInferenceService", {"replicas": 2, "parallelism": {"tensor": 8}, "template": POD_SPEC}),
        "spec.parallelism, which is not evaluated",
    ),
    "PodCliqueSet": (
        obj("grove.io/v1alpha1", "PodCliqueSet", {"replicas": 2, "template": {
            "cliques": [{"name": "a", "spec": {"replicas": 2, "podSpec": POD_SPEC}}],
            "podCliqueScalingGroups": [{"cliqueNames": ["a"], "replicas": 3}],
        }}),
        "spec.template.podCliqueScalingGroups[0].replicas, which is not evaluated",
    ),
    "number that a tool fills in": (
        obj("example.com/v1", "Fleet", {"replicas": "$(N)", "template": POD}),
        "spec.replicas, which is not evaluated",
    ),
    "number in text beside a number": (
        obj("example.com/v1", "Fleet", {"parallelism": 2, "completions": "$(N)", "template": POD}),
        "spec.completions, which is not evaluated",
    ),
    "two negative numbers": (obj("example.com/v1", "Fleet", {"replicas": -2, "size": -2, "template": POD}), "spec.replicas, spec.size"),
    "containers without names": (
        obj("example.com/v1", "Fleet", {"head": POD, "worker": {"spec": {"containers": [{"command": ["x"]}]}}}),
        "spec.worker.spec has containers that are not those of a pod",
    ),
    "kind without a template": (obj("example.com/v1", "Fleet", {"model": "x"}), "no pod template that is known here"),
    "TrainJob": (
        obj("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"numNodes": 4}}),
        "no pod template that is known here",
    ),
    "InferenceService that scales": (
        obj("serving.kserve.io/v1beta1", "InferenceService", {"predictor": {**POD_SPEC, "minReplicas": 2, "maxReplicas": 5}}),
        "2 pods of spec.predictor are counted, and an autoscaler may start up to 5",
    ),
    "RayCluster that scales": (
        obj("ray.io/v1", "RayCluster", {
            "enableInTreeAutoscaling": True, "workerGroupSpecs": [{"replicas": 1, "maxReplicas": 99, "template": POD}],
        }),
        "1 pod of spec.workerGroupSpecs[0].template is counted, and an autoscaler may start up to 99",
    ),
    "ScaledJob": (
        obj("keda.sh/v1alpha1", "ScaledJob", {"jobTargetRef": {"template": POD}, "maxReplicaCount": 7}),
        "1 pod of spec.jobTargetRef.template is counted, and an autoscaler may start up to 7",
    ),
    "ScaledJob without a limit": (
        obj("keda.sh/v1alpha1", "ScaledJob", {"jobTargetRef": {"template": POD}}),
        "1 pod of spec.jobTargetRef.template is counted, and an autoscaler may start more",
    ),
    "ScaledObject": (
        obj("keda.sh/v1alpha1", "ScaledObject", {"scaleTargetRef": {"name": "w"}, "maxReplicaCount": 7}), "no pod template"
    ),
    "HorizontalPodAutoscaler": (
        obj("autoscaling/v2", "HorizontalPodAutoscaler", {"maxReplicas": 7}), "which the autoscaler changes"
    ),
    "suspended Job": (
        obj("batch/v1", "Job", {"suspend": True, "template": POD}), "spec.suspend is true: its pods are counted as if it were resumed"
    ),
    "suspended CronJob": (
        obj("batch/v1", "CronJob", {"suspend": True, "jobTemplate": {"spec": {"template": POD}}}), "spec.suspend is true"
    ),
    "CronJob of suspended Jobs": (
        obj("batch/v1", "CronJob", {"jobTemplate": {"spec": {"suspend": True, "template": POD}}}),
        "spec.jobTemplate.spec.suspend is true",
    ),
    "suspended JobSet": (
        obj("jobset.x-k8s.io/v1alpha2", "JobSet", {"suspend": True, "replicatedJobs": [{"template": job(1, 0)}]}),
        "spec.suspend is true",
    ),
    "suspended MPIJob": (
        obj("kubeflow.org/v2beta1", "MPIJob", {"runPolicy": {"suspend": True}, "mpiReplicaSpecs": {"Worker": {"template": POD}}}),
        "spec.runPolicy.suspend is true",
    ),
    "PodTemplate": ({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "w"}, "template": POD}, "other objects decide"),
}  # fmt: skip


def run(*manifests: JSON) -> Simulation:
    return simulate(Snapshot.of([*cluster(nodes=3, devices=60), node("spare")]), [TEMPLATE, *manifests])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", COUNTED)
def test_the_pods_of_each_template_are_counted(case: str, seed: int) -> None:
    make, number = COUNTED[case]
    draw = random.Random(f"{case} {seed}")
    n, m = draw.randint(2, 6), draw.randint(2, 6)
    found = run(make(n, m))
    assert sum(fit.pods for fit in found.workloads) == number(n, m)
    assert (found.fits, found.known, found.unevaluated) == (True, True, ())
    names = [p.pod for fit in found.workloads for p in fit.placed]
    assert len(set(names)) == number(n, m)


@pytest.mark.parametrize("case", NAMED)
def test_an_object_whose_pods_are_not_all_counted_is_named_once_and_the_result_is_not_known(case: str) -> None:
    manifest, why = NAMED[case]
    found = run(manifest)
    [named] = found.unevaluated
    where = f"{manifest['kind']} default/w"
    assert (named.subject, why in named.why) == (where, True), named
    assert not found.known


def test_a_pod_that_fits_nowhere_decides_the_result_although_another_object_is_not_counted() -> None:
    too_many = obj("example.com/v1", "Fleet", {"replicas": 181, "template": POD})
    found = run(too_many, NAMED["VirtualMachine"][0])
    assert (found.fits, found.known) == (False, True)


@pytest.mark.parametrize("kind", ["Service", "ConfigMap", "ServiceAccount", "Role"])
def test_kinds_of_kubernetes_that_create_no_pods_need_no_word(kind: str) -> None:
    other = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}, "spec": {"template": POD}}
    found = run(other, obj("apps/v1", "Deployment", {"template": POD}))
    assert (found.known, found.unevaluated) == (True, ())


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob", "DaemonSet"])
@pytest.mark.parametrize("spec", [None, [], "x"])
def test_a_workload_without_a_spec_is_an_error(kind: str, spec: Any) -> None:
    broken = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "broken"}, "spec": spec}
    with pytest.raises(QuestionError, match=f"{kind} broken has no spec"):
        run(broken, obj("apps/v1", "Deployment", {"template": POD}))


def test_pods_of_a_group_share_the_claim_of_the_group() -> None:
    group = obj("scheduling.k8s.io/v1alpha2", "PodGroup", {"schedulingPolicy": {"basic": {}}, "resourceClaims": CLAIMS})
    spec = {**POD_SPEC, "schedulingGroup": {"podGroupName": "w"}}
    found = run(group, obj("apps/v1", "Deployment", {"replicas": 5, "template": {"spec": spec}}))
    assert (found.fits, found.known, found.held) == (True, True, 1)
    [fit] = found.workloads
    assert len(fit.nodes) == 1
    gang = {**group, "spec": {**group["spec"], "schedulingPolicy": {"gang": {"minCount": 5}}}}
    [named] = run(gang, obj("apps/v1", "Deployment", {"replicas": 5, "template": {"spec": spec}})).unevaluated
    assert "schedulingPolicy gang of PodGroup w" in named.why


def _simulated(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, JSON, str]:
    driver = ["--host", "nvlink-server=1", "--driver", str(ROOT / "drivers/gpu_example")]
    code = main(["simulate", "-f", str(path), *driver, "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert main(["simulate", "-f", str(path), *driver]) == code
    return code, found, capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "number", "expected"), [("LeaderWorkerSet", 3, 1), ("LeaderWorkerSet", 2, 0), ("VirtualMachine", 0, 3)]
)
def test_the_exit_code_of_the_command_says_success_only_if_all_pods_were_counted(
    case: str, number: int, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = COUNTED[case][0](number, 4) if number else NAMED[case][0]
    one_gpu = json.loads(json.dumps(TEMPLATE).replace('"gpu"', '"gpu.example.com"'))
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([one_gpu, manifest]))
    code, found, shown = _simulated(tmp_path / "all.yaml", capsys)
    assert (code, sum(fit["pods"] for fit in found["workloads"])) == (expected, number * 4)
    assert ("not evaluated: VirtualMachine default/w" in " ".join(shown.split())) == (expected == 3)
