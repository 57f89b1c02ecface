"""``dra conformance``: checks a driver in any language against the rules of kubelet, API server and container runtime."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_devkit.commands.progress import Progress
from dra_devkit.commands.style import Style
from dra_devkit.yaml.manifests import objects
from dra_kubeletplugin.base.terminal import on_one_line
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.exit_handling import print_line
from dra_kubeletplugin.cli.shell.output import TEXT, put
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.kube import ApiConfig, load_config

from .attach import CHANGES_THE_NODE, AttachedHarness, attach
from .catalogue import CATALOGUE, ConformanceCheck
from .driver_command import DriverCommand
from .profile import ConformanceProfile, read_profile
from .reports import (
    FORMS,
    conformance_report,
    failure_lines,
    progress_line,
    summary_line,
    transcript_text,
)
from .runner import CheckOutcome, ConformanceRun, OutcomeStatus, run_checks, select_checks


@dataclass(frozen=True)
class Checks:
    """The result of `dra conformance list` and `dra conformance explain`."""

    checks: tuple[ConformanceCheck, ...]


_COLORS = {OutcomeStatus.PASSED: "32", OutcomeStatus.FAILED: "1;31"}
_OTHER_COLOR = "33"


def conformance(args: argparse.Namespace) -> int:
    """Runs the command. Raises :class:`SettingsError` for a user's mistakes."""
    selected = select_checks(args.checks)
    if args.action != "run":
        explained, listed = "\n\n".join(map(_explained, selected)), [f"{c.id}  {c.level:<6} {c.text}" for c in selected]
        put(Checks(tuple(selected)), args.output, lambda _: [explained] if args.action == "explain" else listed)
        return Exit.SUCCESS
    if args.attach == bool(args.driver_cmd):
        raise SettingsError("use either --driver-cmd with the command that starts the driver, or --attach on its node")
    profile = read_profile(Path(args.profile), list(CATALOGUE)) if args.profile else ConformanceProfile()
    rules = _rules(args.rbac)
    _check_report_files(args)
    with Progress() as progress:
        report = _reporter(progress, Style.of(sys.stdout), selected, text=args.output == TEXT)
        progress("connecting to the driver" if args.attach else "starting the driver")
        if args.attach:
            node = args.node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower()
            config = _api_server()
            attached = AttachedHarness(Path(args.kubelet_root), node, config, profile)
            return _finished(args, asyncio.run(attach(attached, args.driver_name, selected, report)))
        command = DriverCommand.parse(args.driver_cmd, fixed_paths=args.fixed_paths, host=args.host)
        found = asyncio.run(run_checks(command, profile, selected, report, rules))
    return _finished(args, found)


def _api_server() -> ApiConfig:
    """Returns the API server of ``--attach``. Raises :class:`SettingsError`."""
    kubeconfig = os.environ.get("KUBECONFIG", "")
    if not kubeconfig and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise SettingsError(
            "--attach reads the Node and its ResourceSlices: set KUBECONFIG to a kubeconfig of the cluster, such as "
            "/etc/kubernetes/kubelet.conf"
        )
    return load_config(kubeconfig)


def _check_report_files(args: argparse.Namespace) -> None:
    """Raises :class:`SettingsError` for a report whose folder does not exist: a run takes minutes."""
    for form in FORMS:
        if (path := getattr(args, form)) and not Path(path).parent.is_dir():
            raise SettingsError(f"--{form} {path}: there is no folder {Path(path).parent}")


def _explained(check: ConformanceCheck) -> str:
    lines = [f"{check.id} ({check.level}): the driver {check.text}"]
    lines += [f"  steps:  {check.steps}", f"  if not: {check.consequence}", f"  source: {check.source}"]
    lines.append(f"  level:  {check.level}: {check.level.meaning}")
    limit = f"{check.limit:g} s without starts of the driver"
    lines.append(f"  limit:  {limit}; {'runs' if check.attach else 'skipped'} with --attach")
    lines.append(f"  run:    dra conformance run {check.id} --transcripts FOLDER --driver-cmd COMMAND")
    return "\n".join(lines)


def _reporter(
    progress: Progress, style: Style, selected: Sequence[ConformanceCheck], *, text: bool
) -> Callable[[CheckOutcome], None]:
    """Returns a function that shows the progress, and, with ``text``, prints the outcome of each check."""
    following = {check.id: after for check, after in itertools.pairwise(selected)}

    def print_outcome(outcome: CheckOutcome) -> None:
        first, *rest = progress_line(outcome).split("\n")
        mark, space, shown = first.partition(" ")
        print_line(
            style.paint(_COLORS.get(outcome.status, _OTHER_COLOR), mark) + space + on_one_line(shown), sys.stdout
        )
        for line in [*rest, *(failure_lines(outcome) if outcome.expected else ())]:
            print_line(on_one_line(line), sys.stdout)

    def report(outcome: CheckOutcome) -> None:
        progress.done()
        if outcome.reason == CHANGES_THE_NODE:  # most checks: one line at the end counts them
            return
        if text:
            print_outcome(outcome)
        if after := following.get(outcome.check.id):
            progress(f"{after.id} runs: {after.text}")

    return report


def _rules(files: Sequence[str]) -> Sequence[Mapping[str, Any]] | None:
    """Returns the rules of all Roles and ClusterRoles in the files; None without files.

    Raises :class:`ManifestError`, and :class:`SettingsError` if the files have no rules.
    """
    if not files:
        return None
    found = [m.value for m in objects([Path(f) for f in files]) if isinstance(m.value, dict)]
    rules = [rule for obj in found if obj.get("kind") in {"Role", "ClusterRole"} for rule in obj.get("rules") or ()]
    if not rules:
        raise SettingsError(f"--rbac: {', '.join(files)} has no Role or ClusterRole with rules")
    return rules


def _finished(args: argparse.Namespace, found: ConformanceRun) -> int:
    for form in FORMS:
        if path := getattr(args, form):
            Path(path).write_text(conformance_report(found, form))
    if args.transcripts:
        _write_transcripts(Path(args.transcripts), found)
    put(found, args.output, lambda _: _last_lines(found, args.transcripts))
    if found.fault:
        first, *rest = found.fault.splitlines()
        print_line(f"dra: {on_one_line(first)}")
        for line in rest:
            print_line(f"  {on_one_line(line)}")
    if args.fail_on_skip and (skipped := [o.check.id for o in found.outcomes if o.status is OutcomeStatus.SKIPPED]):
        print_line(f"dra: --fail-on-skip: {', '.join(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped")
    return found.exit_code(strict=args.strict, fail_on_skip=args.fail_on_skip)


def _last_lines(found: ConformanceRun, transcripts: str | None) -> Iterator[str]:
    yield summary_line(found)
    if changing := sum(o.reason == CHANGES_THE_NODE for o in found.outcomes):
        yield f"{changing} of the skipped checks would change the node: run them with --driver-cmd"
    if failed := [o.check.id for o in found.outcomes if o.expected]:
        where = f"are in {transcripts}" if transcripts else "are written with --transcripts FOLDER"
        yield f"All calls of {', '.join(failed)} and the driver's output {where}"


def _write_transcripts(folder: Path, found: ConformanceRun) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for outcome in found.outcomes:
        if outcome.expected:
            (folder / f"{outcome.check.id}.txt").write_text(transcript_text(outcome))
