"""`make demo`: shows each step of a claim on this machine. It does not change the machine's PCI functions."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_devkit.commands.inspect import host_root, tree
from dra_devkit.commands.style import Style
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.runtime import runc_runtime
from dra_devkit.localcluster.runtime.interface import ContainerError, LogOptions
from dra_devkit.testing import plugin_on
from dra_kubeletplugin.cli.shell.exit_handling import ended
from dra_kubeletplugin.driver import load_driver
from dra_kubeletplugin.host import Host, PciFunction
from dra_kubeletplugin.plugin.node import Plugin

HERE = Path(__file__).parent
STYLE = Style.of(sys.stdout)
LAST_LINE = b"that is all\n"  # the last line of the container's output, see examples/pod.yaml


def say(number: int, text: str) -> None:
    print(f"\n{STYLE.bold(STYLE.green(f'{number}.'))} {STYLE.bold(text)}")


def show(text: str, indent: int = 3) -> None:
    for line in text.splitlines():
        print(" " * indent + line)


async def main(description: str | None = None) -> int:
    """Runs the demo on this machine, or on the described host in the file ``description``."""
    started = time.monotonic()
    logging.basicConfig(level=logging.ERROR)
    Pci = load_driver(str(HERE))
    real = Host().pci()
    usable = [fn for fn in real if not fn.is_class(0x06)]
    if not usable and not description:
        description = str(HERE / "hosts/two-sockets.yaml")
        print(STYLE.yellow("This machine has no PCI function that a container could get."))
    if description:
        print(STYLE.yellow(f"The demo uses a described host: {description}"))
    runtimes, why_not = None, "a container cannot use the files of a described host"
    if not description:
        try:
            runtimes, why_not = await runc_runtime.factory(), ""
        except ContainerError as e:
            why_not = str(e)
    with host_root(description, Path("/sys")) as sysfs:
        say(1, "Local cluster and driver start")
        async with (
            LocalCluster(runtimes=runtimes) as cluster,
            plugin_on(cluster, Pci, cluster.node.name, sysfs_root=sysfs, log_level="error") as plugin,
        ):
            cluster.node.runtime.dev = plugin.host.dev
            show(f"API server {cluster.api.public_url}, kubelet root {cluster.node.kubelet_root}")
            show(f"driver {Pci.name} registered with the kubelet in {time.monotonic() - started:.2f} s")
            steps = Steps(cluster, plugin, why_not)
            found = Host(sysfs).pci()
            for step in (lambda: steps.hardware(found), steps.claim, steps.container, steps.clean_up):
                await step()
        took = time.monotonic() - started
        print(f"\n{STYLE.green('All done')} in {took:.1f} s. Next: make dev, then kubectl.")
        print("examples/ has a manifest for each feature; make examples runs them.")
    return 0


class Steps:
    """The numbered steps after the start of the cluster."""

    def __init__(self, cluster: LocalCluster, plugin: Plugin, why_not: str) -> None:
        self.cluster = cluster
        self.plugin = plugin
        self.why_not = why_not  # why no real container runs; empty if one does

    async def hardware(self, functions: list[PciFunction]) -> None:
        say(2, "PCI functions of this machine, and the published devices")
        published = {d.data.address: d for d in self.plugin.inventory if isinstance(d.data, PciFunction)}
        notes = {a: STYLE.green(f"published as {d.name}") for a, d in published.items()}
        driver: Any = self.plugin.driver
        withheld = driver.withheld
        notes |= {
            a: STYLE.yellow(f"kept for the host: it carries {why}") for a, why in withheld.items() if a not in notes
        }
        show("\n".join(tree(functions, notes, STYLE)))
        for sl in self.cluster.slices(self.plugin.settings.driver_name):
            spec = sl["spec"]
            pool = spec["pool"]
            print()
            name = STYLE.bold(sl["metadata"]["name"])
            show(f"ResourceSlice {name}: pool {pool['name']}, generation {pool['generation']}")
            for device in spec.get("devices") or []:
                attributes = device["attributes"]
                standard = {k: v for k, v in attributes.items() if k.startswith("resource.kubernetes.io/")}
                values = ", ".join(f"{k}={next(iter(v.values()))}" for k, v in standard.items())
                show(f"{STYLE.cyan(device['name'])}: {values}", 5)
        if not published:
            raise SystemExit("no function can be published; set PCI_UNSAFE=1 to publish those that the host needs")

    async def claim(self) -> None:
        say(3, "A DeviceClass, a ResourceClaimTemplate and a Pod, as a user applies them with kubectl")
        for name in ("deploy/deviceclass.yaml", "examples/claimtemplate.yaml", "examples/pod.yaml"):
            for obj in await self.cluster.apply_file(HERE / name):
                show(f"{obj['kind'].lower()}/{obj['metadata']['name']} created from drivers/pci/{name}")
        await self.cluster.wait_running("pci-demo")
        claim = self.cluster.claims()[0]
        results = claim["status"]["allocation"]["devices"]["results"]
        show(
            f"claim {STYLE.bold(claim['metadata']['name'])} allocated: "
            + ", ".join(f"{r['pool']}/{r['device']}" for r in results)
        )
        uid = claim["metadata"]["uid"]
        path = self.plugin.claims.files.specs.path(uid)
        show(f"prepared through {self.plugin.paths.dra}")
        show(f"CDI spec {path}:")
        show(json.dumps(json.loads(path.read_text()), indent=2), 5)

    async def container(self) -> None:
        say(4, "The device in the container")
        pod = await self.cluster.pod("pci-demo")
        runtime, uid = self.cluster.node.runtime, pod["metadata"]["uid"]
        if self.why_not:
            show(STYLE.yellow(f"No real container runs: {self.why_not}. The OCI spec after injection:"))
            spec = runtime.spec(uid, "main")
            shown = {"process": {"env": spec["process"]["env"]}, "mounts": spec["mounts"]}
            shown["linux"] = {"devices": spec["linux"].get("devices", [])}
            show(json.dumps(shown, indent=2), 5)
            return
        show(f"seen from inside the container, which {runtime.version} runs (`kubectl logs pci-demo`):")
        out = b""
        async for part in runtime.logs(uid, "main", LogOptions(follow=True)):
            out += part
            if out.endswith(LAST_LINE):
                break
        show(STYLE.cyan(out.decode()), 5)

    async def clean_up(self) -> None:
        say(5, "The pod is deleted, and nothing is left")
        await self.cluster.delete_pod("pci-demo")
        await self._until("the claim to go", lambda: not self.cluster.claims())
        checks = {
            "CDI files": self.plugin.claims.files.specs.uids(),
            "records": await self.plugin.claims.store.all(),
            "devices held": [d for _, d in await self.plugin.claims.store.held()],
            "claims": self.cluster.claims(),
        }
        for what, remaining in checks.items():
            show(f"{what}: {STYLE.green('none') if not remaining else STYLE.red(str(remaining))}")
        if any(checks.values()):
            raise SystemExit("the cleanup is incomplete")

    async def _until(self, what: str, check: Callable[[], Any]) -> None:
        async def ask() -> Any:
            return check()

        await self.cluster.wait(what, ask)


if __name__ == "__main__":
    raise SystemExit(ended(lambda: asyncio.run(main(*sys.argv[1:2]))))
