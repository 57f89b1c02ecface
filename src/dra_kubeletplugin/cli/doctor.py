"""``dra doctor``: what is broken, a line each, with what to do; ``dra gather`` packs it, with logs, into one file.

Exit codes: 0 where nothing failed, 1 where something did, 2 for what the user has to correct.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ..doctor import Examination, Finding, Level, cluster, examine
from ..doctor.gathering import Archive, gather
from ..driver import load_driver, make
from ..errors import DraError, SettingsError, describe
from ..host import Host
from ..kube import ApiConfig, load_config
from ..settings import Settings, load
from .inspect import look, without_log
from .options import given
from .style import Style

_PERMISSIONS = {"reader": cluster.READER, "plugin": cluster.PLUGIN}


def doctor(args: argparse.Namespace) -> int:
    with without_log("dra_kubeletplugin"):  # what is worth saying is a finding
        return _doctor(args)


def _doctor(args: argparse.Namespace) -> int:
    if args.output == "table":
        return asyncio.run(_told(_examination(args)))
    findings = asyncio.run(_all(_examination(args)))
    shown = {"findings": [f.json() for f in findings]}
    if args.output == "yaml":
        import yaml

        print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(shown, indent=2))
    return _code(findings)


def gathered(args: argparse.Namespace) -> int:
    with without_log("dra_kubeletplugin"):
        return _gathered(args)


def _gathered(args: argparse.Namespace) -> int:
    what = _examination(args)
    path = Path(args.file or time.strftime("dra-%Y%m%d-%H%M%S.tar.gz"))
    try:
        archive = Archive(path)
    except OSError as e:
        raise SettingsError(f"{path} cannot be written: {e.strerror}") from None
    style = Style.of(sys.stderr)

    def told(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{style.dim(what)}", end="", file=sys.stderr, flush=True)

    async def run() -> None:
        await gather(what, await _all(what), archive, told)

    try:
        asyncio.run(run())
    except OSError as e:
        path.unlink(missing_ok=True)
        raise SettingsError(f"{path} cannot be written: {describe(e)}") from None
    finally:
        told("")
        archive.close()
    print(
        f"{path}: look through it before you send it; names of pods, nodes and devices are in it, secrets were taken out"
    )
    return 0


def _examination(args: argparse.Namespace) -> Examination:
    settings = load(given(args))
    in_pod = not settings.kubeconfig
    wanted = args.permissions or ("plugin" if in_pod and settings.node_name else "reader")
    host = args.host if args.host is not None else bool(settings.node_name) or settings.kubelet_root.is_dir()
    return Examination(
        api=_api(settings),
        permissions=_PERMISSIONS[wanted],
        host=host,
        host_root=args.host_root,
        kubelet_root=settings.kubelet_root,
        cdi_root=settings.cdi_root,
        sysfs_root=settings.sysfs_root,
        dev_root=settings.dev_root,
        node=settings.node_name,
        devices=_devices(args.drivers, settings),
        timeout=settings.api_timeout,
    )


def _api(settings: Settings) -> ApiConfig | str:
    try:
        return load_config(settings.kubeconfig, service_account=settings.service_account)
    except DraError as e:
        return e.message


def _devices(drivers: list[str], settings: Settings) -> Mapping[str, frozenset[str]]:
    """What drivers find on this machine, by their names."""
    out = {}
    for target in drivers:
        driver = make(load_driver(target))
        driver.attach(Host(settings.sysfs_root, settings.dev_root, lists=settings.list_attributes), settings)
        inventory = asyncio.run(look(driver, settings))
        left_out = inventory.left_out
        out[settings.driver_name or driver.name] = frozenset(d.name for d in inventory if d.name not in left_out)
    return out


async def _all(what: Examination) -> list[Finding]:
    return [finding async for finding in examine(what)]


async def _told(what: Examination) -> int:
    style = Style.of(sys.stdout)
    paint = {Level.OK: style.green, Level.UNKNOWN: style.dim, Level.WARNING: style.yellow, Level.FAILURE: style.red}
    findings = []
    async for f in examine(what):
        findings.append(f)
        print(f"{paint[f.level](f'{f.level:8}')} {style.bold(f'{f.topic:13}')} {f.text}", flush=True)
        if f.todo:
            print(f"{'':22} {style.cyan('->')} {f.todo}", flush=True)
    counts = Counter(f.level for f in findings)
    print(", ".join(f"{counts[level]} {level}" for level in reversed(Level) if counts[level]))
    return _code(findings)


def _code(findings: list[Finding]) -> int:
    return 1 if any(f.level is Level.FAILURE for f in findings) else 0
