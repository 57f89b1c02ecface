"""The real kubectl, verb by verb. It sends protobuf for some kinds, always uses TLS with a token, and reads schemas before writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from packages.devkit.tests.localcluster.apiserver.kubectl import Kubectl
from tests.tools.tree import ROOT

pytestmark = pytest.mark.kubectl

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "nginx:1", ports: [{containerPort: 80}]}]}
"""
CUSTOM = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: foos, kind: Foo, shortNames: [fo]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
"""


@pytest.fixture
async def kubectl() -> AsyncIterator[Kubectl]:
    async with LocalCluster(("node-1",)) as cluster:
        yield Kubectl(cluster)


CREATE_COMMANDS = (
    ("namespace a", "namespace/a"),
    ("configmap c --from-literal=x=1", "configmap/c"),
    ("secret generic s --from-literal=p=q", "secret/s"),
    ("serviceaccount sa", "serviceaccount/sa"),
    ("quota q --hard=pods=5", "resourcequota/q"),
    ("deployment d --image=nginx --replicas=0", "deployment.apps/d"),
    ("job j --image=busybox -- true", "job.batch/j"),
    ("role r --verb=get --resource=pods", "role.rbac.authorization.k8s.io/r"),
    ("rolebinding rb --role=r --serviceaccount=default:sa", "rolebinding.rbac.authorization.k8s.io/rb"),
    ("clusterrole cr --verb=get --resource=nodes", "clusterrole.rbac.authorization.k8s.io/cr"),
    ("clusterrolebinding crb --clusterrole=cr --user=me", "clusterrolebinding.rbac.authorization.k8s.io/crb"),
    ("priorityclass pc --value=1000", "priorityclass.scheduling.k8s.io/pc"),
    ("pdb b --selector=app=d --min-available=1", "poddisruptionbudget.policy/b"),
    ("service clusterip svc --tcp=80:8080", "service/svc"),
)


async def test_kubectl_create_creates_objects_of_every_kind(kubectl: Kubectl) -> None:
    for command, object_name in CREATE_COMMANDS:
        assert await kubectl("create", *command.split()) == f"{object_name} created\n"
    names = [object_name for _, object_name in CREATE_COMMANDS]
    assert (await kubectl("get", *names, "-o", "name")).split() == names
    wide = await kubectl("get", *names, "-o", "wide")
    assert all(name in wide for name in names)
    await kubectl("delete", *names, "--wait=false")


async def test_kubectl_labels_taints_cordons_and_drains_nodes(kubectl: Kubectl) -> None:
    await kubectl("run", "p", "--image=busybox:1", "--restart=Never", "--", "sleep", "infinity")
    await kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=55s")
    await kubectl("label", "node", "node-1", "a=b")
    await kubectl("annotate", "node", "node-1", "c=d")
    await kubectl("taint", "node", "node-1", "x=y:NoSchedule")
    await kubectl("taint", "node", "node-1", "x-")
    assert "node-1 cordoned" in await kubectl("cordon", "node-1")
    assert "SchedulingDisabled" in await kubectl("get", "nodes")
    assert "pod/p evicted" in await kubectl("drain", "node-1", "--force", "--grace-period=0", "--timeout=55s")
    await kubectl("uncordon", "node-1")
    assert "a=b" in await kubectl("get", "nodes", "--show-labels")


async def test_kubectl_applies_compares_changes_and_deletes_manifests(kubectl: Kubectl, tmp_path: Path) -> None:
    path = tmp_path / "web.yaml"
    path.write_text(DEPLOYMENT)
    assert "created" in await kubectl("apply", "-f", str(path))
    assert "unchanged" in await kubectl("apply", "-f", str(path))
    path.write_text(DEPLOYMENT.replace("nginx:1", "nginx:2"))
    await kubectl("diff", "-f", str(path), fails=True)  # exit code 1 reports a difference
    assert "configured" in await kubectl("apply", "-f", str(path))
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", str(path))
    await kubectl("set", "image", "deployment/web", "c=nginx:3")
    conflict = await kubectl("apply", "--server-side", "-f", str(path), fails=True)
    assert "Apply failed with 1 conflict" in conflict
    assert "serverside-applied" in await kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    await kubectl("scale", "deployment", "web", "--replicas=0")
    await kubectl("patch", "deployment", "web", "-p", '{"metadata":{"labels":{"z":"1"}}}')
    assert "deployment.apps/web" in await kubectl("get", "all")
    await kubectl("delete", "-f", str(path))
    await kubectl("wait", "--for=delete", "deployment/web", "--timeout=55s")


@pytest.mark.full
async def test_the_examples_of_a_driver_are_applied_listed_described_and_watched(kubectl: Kubectl) -> None:
    names = ("deploy/deviceclass", "examples/claimtemplate", "examples/pod")
    files = [a for name in names for a in ("-f", str(ROOT / "drivers/pci" / f"{name}.yaml"))]
    assert (await kubectl("apply", *files)).count("created") == 3
    # Defaulted fields of the template make kubectl send a patch, which changes nothing.
    version = ("get", "resourceclaimtemplate", "one-pci-function", "-o", "jsonpath={.metadata.resourceVersion}")
    before = await kubectl(*version)
    assert (await kubectl("apply", *files)).count("unchanged") == 2
    assert await kubectl(*version) == before
    await kubectl("wait", "--for=create", "event", "--field-selector=reason=FailedScheduling", "--timeout=55s")
    assert "pending" in await kubectl("get", "resourceclaims", "-o", "wide")
    assert "FailedScheduling" in await kubectl("describe", "pod", "pci-demo")
    argv = kubectl.argv("get", "pods", "-w")
    watch = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert watch.stdout
    assert b"NAME" in await watch.stdout.readline()
    await kubectl("delete", "pod", "pci-demo")
    watch.terminate()
    await watch.wait()


LIST = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: mixed}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: mixed}, data: {a: "1"}}
- {apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: mixed}, spec: {}}
- apiVersion: resource.k8s.io/v1
  kind: ResourceClaim
  metadata: {name: c, namespace: mixed}
  spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mixed}}]}}
- {apiVersion: example.com/v1, kind: Foo, metadata: {name: f}, spec: {size: 1}}
"""


@pytest.mark.full
async def test_kubectl_handles_a_list_of_mixed_kinds(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    # kubectl deletes the other objects first.
    monkeypatch.setattr("dra_devkit.localcluster.apiserver.deleting._NAMESPACE_WAIT", 6.0)
    await kubectl("apply", "-f", "-", stdin=CUSTOM)
    await kubectl("create", "-f", "-", stdin=LIST)
    assert (await kubectl("get", "fo", "-o", "name")).strip() == "foo.example.com/f"
    for verb in ("apply", "apply --server-side --force-conflicts", "replace", "label x=y", "annotate x=y"):
        out = await kubectl(*verb.split(), "-f", "-", stdin=LIST)
        assert len(out.splitlines()) == 5, out
    await kubectl("diff", "-f", "-", stdin=LIST.replace('a: "1"', 'a: "2"'), fails=True)
    # The namespace is deleted first, while the other objects still exist.
    await kubectl("delete", "-f", "-", "--timeout=55s", stdin=LIST)
    for field, message in (('data: {a: "1"}', 'unknown field "dat"'), ("size: 1", 'got "string", expected "integer"')):
        wrong = LIST.replace(field, {"size: 1": "size: x"}.get(field, "dat: {}"))
        assert message in await kubectl("create", "-f", "-", stdin=wrong, fails=True)


SCALER = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}
"""


async def test_unsupported_kinds_are_rejected_with_the_reason(kubectl: Kubectl) -> None:
    await kubectl("create", "deployment", "web", "--image=nginx", "--replicas=0")
    # Newer versions of kubectl autoscale hide the reason.
    assert "does not measure load" in await kubectl("create", "-f", "-", stdin=SCALER, fails=True)
    assert "no pod network" in await kubectl("create", "ingress", "i", "--rule=a/b=c:80", fails=True)
    policy = "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingAdmissionPolicy\nmetadata: {name: p}\nspec: {}"
    assert "use a mutating webhook" in await kubectl("create", "-f", "-", stdin=policy, fails=True)


@pytest.mark.full
async def test_kubectl_auth_lists_permissions_and_escalation_is_rejected(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "reader")
    as_reader = "--as=system:serviceaccount:default:reader"
    assert "selfsubjectaccessreviews" in await kubectl("auth", "can-i", "--list", as_reader)
    await kubectl("create", "rolebinding", "views", "--clusterrole=view", "--serviceaccount=default:reader")
    assert (await kubectl("auth", "can-i", "list", "pods", as_reader)).strip() == "yes"
    await kubectl("auth", "can-i", "list", "secrets", as_reader, fails=True)
    await kubectl("create", "clusterrole", "grants", "--verb=create", "--resource=roles")
    await kubectl("create", "rolebinding", "grants", "--clusterrole=grants", "--serviceaccount=default:reader")
    rejection = await kubectl("create", "role", "more", "--verb=get", "--resource=secrets", as_reader, fails=True)
    assert "is attempting to grant RBAC permissions not currently held" in rejection
    await kubectl("create", "role", "same", "--verb=get", "--resource=pods", as_reader)
    await kubectl("create", "clusterrole", "more-view", "--verb=list", "--resource=secrets")
    await kubectl("label", "clusterrole", "more-view", "rbac.authorization.k8s.io/aggregate-to-view=true")
    assert (await kubectl("auth", "can-i", "list", "secrets", as_reader)).strip() == "yes"
    whoami = await kubectl("auth", "whoami", "--as=me", "--as-group=a", "--as-group=b", "--as-uid=7")
    assert "[a b system:authenticated]" in whoami and "7" in whoami


async def test_a_bound_token_contains_its_node_and_expires_with_its_pod(kubectl: Kubectl) -> None:
    await kubectl("run", "p", "--image=busybox")
    await kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=55s")
    bound = ("--bound-object-kind=Pod", "--bound-object-name=p")
    token = (await kubectl("create", "token", "default", *bound)).strip()
    review = f'{{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{{"token":"{token}"}}}}'
    create = ("create", "-f", "-", "-o", "yaml", "--validate=false")
    review_result = await kubectl(*create, stdin=review)
    assert "authenticated: true" in review_result
    assert "authentication.kubernetes.io/node-name:\n      - node-1" in review_result
    assert "authentication.kubernetes.io/pod-name:\n      - p" in review_result
    await kubectl("delete", "pod", "p", "--grace-period=0", "--force")
    await kubectl("wait", "--for=delete", "pod/p", "--timeout=55s")
    assert "authenticated: true" not in await kubectl(*create, stdin=review)


@pytest.mark.full
async def test_kubectl_explain_auth_and_top_return_results(kubectl: Kubectl) -> None:
    assert "FIELDS:" in await kubectl("explain", "pod.spec")
    assert "allocationMode" in await kubectl("explain", "resourceclaim.spec.devices.requests.exactly", "--recursive")
    assert "deviceclasses" in await kubectl("api-resources")
    assert (await kubectl("auth", "can-i", "create", "pods")).strip() == "yes"
    await kubectl("auth", "can-i", "create", "pods", "--as=me", fails=True)
    assert "kubernetes-admin" in await kubectl("auth", "whoami")
    assert "Metrics API not available" in await kubectl("top", "node", fails=True)
    assert "field label not supported" in await kubectl("get", "pods", "--field-selector", "foo=bar", fails=True)


async def test_kubectl_deletes_a_namespace_with_running_pods(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "n")
    await kubectl("-n", "n", "run", "p", "--image=busybox:1")
    await kubectl("-n", "n", "wait", "--for=condition=Ready", "pod/p", "--timeout=55s")
    await kubectl("delete", "namespace", "n", "--timeout=55s")
    assert "NotFound" in await kubectl("get", "namespace", "n", fails=True)
