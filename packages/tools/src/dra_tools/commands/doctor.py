"""``dra doctor`` prints findings, and the remedy of each problem. ``dra gather`` packs the findings and logs into one file."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_devkit.commands.inspect import look, without_log
from dra_devkit.commands.progress import Progress
from dra_devkit.commands.style import Style
from dra_devkit.localcluster.dev import control
from dra_kubeletplugin.base.local_clusters import running, state_root
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.terminal import indented
from dra_kubeletplugin.base.text import counted
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import given, refuse
from dra_kubeletplugin.cli.shell.output import TEXT, put, write
from dra_kubeletplugin.driver import Check, attach, load_driver, make
from dra_kubeletplugin.errors import DraError, SettingsError, describe
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.host.machine import file_system_root
from dra_kubeletplugin.kube import ApiConfig, load_config

from ..doctor import Examination, Finding, Level, cluster, examine
from ..doctor.findings import failure, ok, warning
from ..doctor.gathering import Archive, gather


@dataclass(frozen=True)
class Findings:
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Gathered:
    """The result of `dra gather`; ``file`` is the archive."""

    file: Path
    findings: tuple[Finding, ...]


_OF_HOST = {"host_root": "--host-root", "kubelet_root": "--kubelet-root", "cdi_root": "--cdi-root"}
_PERMISSIONS = {"reader": cluster.READER, "plugin": cluster.PLUGIN}


# Both commands write no log of their own, because the findings contain everything important.
@without_log("dra_kubeletplugin", "dra_devkit", "dra_tools")
def doctor(args: argparse.Namespace) -> int:
    if args.output == TEXT:
        return asyncio.run(_print_findings(_examination(args)))
    with Progress() as progress:
        findings = asyncio.run(_collect_findings(_examination(args), progress))
    write(Findings(tuple(findings)), args.output)
    return _code(findings)


@without_log("dra_kubeletplugin", "dra_devkit", "dra_tools")
def gathered(args: argparse.Namespace) -> int:
    examination = _examination(args)
    path = Path(args.file or time.strftime("dra-%Y%m%d-%H%M%S.tar.gz"))
    try:
        archive = Archive(path)
    except OSError as e:
        raise SettingsError(f"{path} cannot be written: {e.strerror}") from None

    async def run(progress: Progress) -> list[Finding]:
        findings = await _collect_findings(examination, progress)
        await gather(examination, findings, archive, progress)
        return findings

    done = False
    try:
        with Progress() as progress:
            findings = asyncio.run(run(progress))
        archive.close()
        done = True
    except OSError as e:
        raise SettingsError(f"{path} cannot be written: {describe(e)}") from None
    finally:
        if not done:  # delete an incomplete archive
            archive.close()
            path.unlink(missing_ok=True)
    print(
        "Review it before you send it: it contains names of pods, nodes and devices. Secrets were removed.",
        file=sys.stderr,
    )
    put(Gathered(path, tuple(findings)), args.output, lambda _: [str(path)])
    return Exit.SUCCESS


def _examination(args: argparse.Namespace) -> Examination:
    settings = Settings.load(given(args))
    in_pod = not settings.kubeconfig
    wanted = args.permissions or ("plugin" if in_pod and settings.node_name else "reader")
    if args.host is False:
        refuse(args, _OF_HOST, "is about this machine: do not combine it with --no-host")
    kubelet_root = settings.kubelet_root.absolute()
    local = _is_local(kubelet_root.parent.parent)
    # The cluster of `dra dev` does not use the folders of this machine's kubelet.
    is_other = not local and bool(settings.kubeconfig) and _is_local(Path(settings.kubeconfig).absolute().parent)
    host = args.host if args.host is not None else bool(settings.node_name) or (kubelet_root.is_dir() and not is_other)
    devices, driver_findings = _devices(args.drivers, settings)
    return Examination(
        api=_api(settings, about_machine=args.host is not False),
        permissions=_PERMISSIONS[wanted],
        host=host,
        host_root=args.host_root or file_system_root(),
        kubelet_root=kubelet_root,
        cdi_root=settings.cdi_root,
        sysfs_root=settings.sysfs_root,
        dev_root=settings.dev_root,
        node=settings.node_name,
        devices=devices,
        driver_findings=driver_findings,
        timeout=settings.api_timeout,
        local=local,
    )


def _is_local(folder: Path) -> bool:
    """Returns whether a folder is the state directory of a running `dra dev`."""
    return (folder / control.NAME).is_socket()


def _api(settings: Settings, *, about_machine: bool) -> ApiConfig | str:
    """Returns the API server, or the reason why there is none.

    Args:
        about_machine: whether the reason also names the clusters of `dra dev` that run on this machine.
    """
    try:
        return load_config(settings.kubeconfig, service_account=settings.service_account)
    except DraError as e:
        found = running(state_root()) if about_machine and not settings.kubeconfig else []
        local = (f"; `dra dev` runs in {state}: set KUBECONFIG={state}/kubeconfig" for state in found)
        return e.message + "".join(local)


def _devices(drivers: list[str], settings: Settings) -> tuple[Mapping[str, frozenset[str]], Sequence[Finding]]:
    """Returns the devices that each driver finds on this machine, by the driver's name.

    Also returns findings: the drivers' errors, and the results of their own checks.
    """
    out, findings = {}, list[Finding]()
    for target in drivers:
        driver = make(load_driver(target))
        name = settings.driver_name or driver.name
        attach(driver, Host.of(settings), settings)
        checks: list[Check] = []
        try:
            inventory = asyncio.run(look(driver, settings, checks=checks))
        except DraError as e:  # a failing driver is a finding; the other checks continue
            todo = "fix the error; `dra inspect DRIVER` shows where it was raised"
            findings += [*_of_checks(name, checks), failure("driver", f"{name}: {e.message}", todo)]
            continue
        findings += _of_checks(name, checks)
        rejected = inventory.rejected
        out[name] = frozenset(d.name for d in inventory if d.name not in rejected)
    return out, findings


def _of_checks(driver: str, checks: Sequence[Check]) -> Iterator[Finding]:
    """Yields the results of a driver's own checks. A problem is a failure if it makes the plugin not ready."""
    for check in checks:
        if not check.problem:
            yield ok("driver", f"{driver}: {check.name}")
        else:
            level = failure if check.blocking else warning
            yield level("driver", f"{driver}: {check.name}: {check.problem}", check.todo)


async def _collect_findings(examination: Examination, progress: Progress) -> list[Finding]:
    findings = []
    async for finding in examine(examination):
        findings.append(finding)
        progress(f"checked {finding.topic}")
    return findings


async def _print_findings(examination: Examination) -> int:
    style = Style.of(sys.stdout)
    paint = {Level.OK: style.green, Level.UNKNOWN: style.dim, Level.WARNING: style.yellow, Level.FAILURE: style.red}
    findings = []
    async for f in examine(examination):
        findings.append(f)
        print(f"{paint[f.level](f'{f.level:8}')} {style.bold(f'{f.topic:13}')} {indented(f.text)}", flush=True)
        if f.todo:
            print(f"{'':22} {style.cyan('->')} {indented(f.todo)}", flush=True)
    counts = Counter(f.level for f in findings)
    print(", ".join(_counted(counts[level], level) for level in reversed(Level) if counts[level]))
    return _code(findings)


def _counted(number: int, level: Level) -> str:
    return counted(number, level) if level in {Level.FAILURE, Level.WARNING} else f"{number} {level}"


def _code(findings: list[Finding]) -> int:
    levels = {f.level for f in findings}
    return Exit.NEGATIVE if Level.FAILURE in levels else Exit.UNKNOWN if Level.UNKNOWN in levels else Exit.SUCCESS
