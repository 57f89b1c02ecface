"""The analysis reads and watches DeviceTaintRules in the version that the API server serves, with and without permission to list them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dra_devkit.kubernetes_releases import Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.credentials import Credentials
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, PODS, SLICES, TAINT_RULES, TEMPLATES
from dra_tools import ExplanationState, explain, overview, take
from dra_tools.doctor import Level, cluster, published
from dra_tools.reader import served_as
from dra_tools.usage.rows import DeviceUse
from dra_tools.watcher import ClusterWatcher
from packages.tools.tests.accounts import token_with_rules
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of, template
from tests.helpers.waiting import wait_until

SPEC = {"deviceSelector": {"device": "d0"}, "taint": {"key": "example.com/recall", "effect": "NoSchedule"}}
NODE = {
    "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "uid": "n"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}},
}  # fmt: skip
RELEASES = {
    "v1": Features.of("1.37"),
    "v1beta2": Features.of("1.36", {"DRADeviceTaintRules": True}, {"resource.k8s.io/v1beta2": True}),
    "": Features.of("1.36"),
}


@contextlib.asynccontextmanager
async def running_server(version: str) -> AsyncIterator[KubeClient]:
    server = ApiServer(features=RELEASES[version])
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        client = await stack.enter_async_context(KubeClient(server.config))
        server.storage.put("nodes", NODE)  # the server adds the not-ready taint to a node that a client creates
        objects: list[tuple[Resource, JSON]] = [(CLASSES, device_class()), (SLICES, slice_of("node-1", ["d0"]))]
        objects += [(CLAIMS, claim("c", claim_spec())), (PODS, pod("p", claims=["c"]))]
        for resource, obj in objects:
            await client.create(resource, obj, "default" if resource.namespaced else "")
        yield client


async def create_rule(client: KubeClient, version: str) -> None:
    resource = Resource(TAINT_RULES.group, version, TAINT_RULES.plural)
    await client.create(resource, {"kind": "DeviceTaintRule", "metadata": {"name": "recall"}, "spec": SPEC})


@pytest.mark.parametrize("version", RELEASES)
async def test_take_reads_rules_in_the_version_that_the_cluster_serves(version: str) -> None:
    async with running_server(version) as client:
        served = await served_as(client, TAINT_RULES)
        assert (served.version if served else "") == version
        assert explain(await take(client), "p").state is ExplanationState.FITS
        if version:
            await create_rule(client, version)
            assert "example.com/recall" in explain(await take(client), "p").summary
        assert not (await take(client)).gaps


async def test_a_live_overview_follows_the_creation_and_deletion_of_a_rule() -> None:
    async with running_server("v1beta2") as client:
        watcher = ClusterWatcher(client)
        await watcher.start()
        task = asyncio.create_task(watcher.run())

        def device_use() -> DeviceUse:
            return overview(watcher.snapshot()).devices[0].use

        try:
            await watcher.wait_listed()
            assert device_use() is DeviceUse.FREE
            await create_rule(client, "v1beta2")
            await wait_until(lambda: device_use() is DeviceUse.UNAVAILABLE, "the rule to apply")
            await client.delete(Resource(TAINT_RULES.group, "v1beta2", TAINT_RULES.plural), "recall")
            await wait_until(lambda: device_use() is DeviceUse.FREE, "the rule to end")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_take_reads_templates_of_all_namespaces() -> None:
    async with running_server("") as client:
        await client.create(Resource("", "v1", "namespaces"), {"metadata": {"name": "other"}})
        template_object = template("t")
        template_object["metadata"].pop("namespace", None)
        await client.create(TEMPLATES, template_object, "other")
        (found,) = (await take(client, "default")).templates
        assert found["metadata"]["namespace"] == "other"


async def test_the_doctor_names_the_rule_of_a_taint() -> None:
    async with running_server("v1beta2") as client:
        await create_rule(client, "v1beta2")
        (found,) = [f async for f in published.look(client)]
        assert "d0 of toy.example.com has example.com/recall:NoSchedule of DeviceTaintRule recall" in found.text


@pytest.mark.parametrize("version", RELEASES)
async def test_the_doctor_checks_the_permission_for_rules_if_the_server_serves_them(version: str) -> None:
    rules = [{"apiGroups": [p.group], "resources": [p.resource], "verbs": [p.verb]} for p in cluster.READER]
    allowed = [r for r in rules if r["resources"] != [TAINT_RULES.plural]]
    async with running_server(version) as admin:
        token = await token_with_rules(admin, allowed)
        config = replace(admin.config, credentials=Credentials(f"Bearer {token}"))
        async with KubeClient(config) as reader:
            (found,) = [f async for f in cluster.look(reader, cluster.READER) if f.topic == "permissions"]
    assert found.level is (Level.FAILURE if version else Level.OK)
    assert ("devicetaintrules" in found.text) == bool(version)
