"""Checks the arguments of ``dra dev`` completely before anything is started, so that all mistakes are reported at once."""

from __future__ import annotations

import argparse
import os
import re
import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dra_kubeletplugin.base.settings import ControllerSettings, Settings
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.cli.shell.driver_options import given_own
from dra_kubeletplugin.cli.shell.exit_handling import report
from dra_kubeletplugin.cli.shell.options import given
from dra_kubeletplugin.driver import Driver, as_flags, check, load_driver, read_options
from dra_kubeletplugin.driver.attachment import overrides
from dra_kubeletplugin.errors import DriverError, SettingsError

from ..kubernetes_releases import DEFAULT, Features, parse_gates, parse_runtime_config
from ..localcluster.dev import manifests
from ..localcluster.dev.drivers import DriverProgram
from ..localcluster.runtime.images import ImageError, parse_option
from ..yaml.manifests import Manifest, ManifestError
from . import dev_driver
from .dev_args import OWN_SETTINGS, VERBS

_HEALTH_INTERVAL = "1s"  # short, because a developer waits for it
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s]*):(\d{1,5})")
_MAX_NODES = 100
_MAX_SOCKET = 107  # bytes of a Unix socket's path
# The length of the longest path below the state folder that a driver needs.
_BELOW = len("/node-100/kubelet/plugins_registry/dra-0123456789012345678901-reg.sock")


@dataclass(frozen=True)
class DevPlan:
    """The checked arguments of ``dra dev``."""

    settings: Settings
    programs: Sequence[DriverProgram]
    controllers: Sequence[DriverProgram]
    nodes: Sequence[str]
    hosts: Sequence[str]  # of each node; empty for this machine
    apply: list[Manifest]
    images: Mapping[str, Path]
    containers: bool
    state: Path | None
    address: str
    certificate: tuple[Path, Path] | None
    reload: bool
    features: Features


def planned(args: argparse.Namespace) -> DevPlan:
    """Returns the checked arguments.

    Raises :class:`SettingsError` with all mistakes. If drivers cannot be loaded, prints all their errors but the last, and raises the
    last :class:`DriverError`.
    """
    drivers = _drivers(args)
    options = given(args)
    settings = Settings.load(options | {"kubeconfig": ""})
    faults: list[str] = []
    own = _own_options(args, drivers, settings, faults)
    nodes = _nodes(args, settings, faults)
    if args.images and not args.containers:
        faults.append("--image is only for real containers: add --containers")
    images = _images(args.images, faults)
    found = _ADDRESS.fullmatch(args.api_address)
    if not found or int(found[2]) > 65535:
        faults.append(f"--api-address {args.api_address!r} is not HOST:PORT")
    state = _state(args.state_dir, faults)
    certificate = _certificate(args, faults)
    features = _features(args, faults)
    to_apply: list[Manifest] = []
    try:
        to_apply = manifests.read([Path(p) for p in args.apply], features)
    except ManifestError as e:
        faults += e.faults
    if faults:
        raise SettingsError(*faults)

    def programs(part: str) -> list[DriverProgram]:
        return [_program(part, target, driver, settings, options, own[target]) for target, driver in drivers.items()]

    return DevPlan(
        settings,
        programs(dev_driver.NODE),
        programs(dev_driver.CONTROLLER) if args.controller else [],
        nodes,
        args.hosts * args.nodes if len(args.hosts) == 1 else args.hosts,
        to_apply,
        images,
        args.containers,
        state,
        args.api_address,
        certificate,
        not args.no_reload,
        features,
    )


def _own_options(
    args: argparse.Namespace, drivers: Mapping[str, type[Driver]], settings: Settings, faults: list[str]
) -> dict[str, list[str]]:
    """Checks options that depend on the drivers. Returns the options that the drivers define, as flags for each driver."""
    if len(drivers) > 1 and settings.driver_name:
        faults.append("--driver-name is for one driver, but several are given")
    if settings.http_address and (plugins := len(drivers) * args.nodes) > 1:
        faults.append(
            f"--http-address {settings.http_address}: {plugins} plugins, each driver on each node, cannot share one address: "
            "leave it out, or give one driver and one node"
        )
    flags = {}
    for target, driver in drivers.items():
        own = given_own(args, driver)
        try:
            read_options(driver, own)
            flags[target] = as_flags(driver, own)
        except SettingsError as e:
            faults += [f for f in e.faults if f not in faults]  # several drivers may share a flag
    names = [settings.driver_name or d.name for d in drivers.values()]
    faults += [f"two drivers are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    return flags


def _state(given_folder: str | None, faults: list[str]) -> Path | None:
    if not given_folder:
        return None
    state = Path(given_folder).absolute()
    if (over := len(os.fsencode(state)) + _BELOW - _MAX_SOCKET) > 0:
        faults.append(
            f"--state-dir {state} is {over} bytes too long: the paths of the sockets in it may have at most {_MAX_SOCKET} bytes"
        )
    return state


def _features(args: argparse.Namespace, faults: list[str]) -> Features:
    try:
        gates = parse_gates(",".join(args.feature_gates))
        return Features.of(args.kubernetes, gates, parse_runtime_config(",".join(args.runtime_config)))
    except SettingsError as e:
        faults += e.faults
        return Features.of(DEFAULT)


def _drivers(args: argparse.Namespace) -> dict[str, type[Driver]]:
    found, wrong = {}, []
    for target in args.drivers:
        try:
            found[target] = args.loaded.get(target) or _loaded(target)
            check(found[target])
        except DriverError as e:
            wrong.append(e)
    for other in wrong[:-1]:
        report(other)
    if wrong:
        raise wrong[-1]
    return found


def _loaded(target: str) -> type[Driver]:
    """Loads a driver. Raises :class:`SettingsError` for a misspelt verb, and :class:`DriverError`."""
    try:
        return load_driver(target)
    except DriverError:
        # A module's name may resemble a verb, as `driver` resembles `kill-driver`. So only a name that is not a module gets the hint.
        known = not re.fullmatch("[a-z-]+", target) or Path(target).exists() or find_spec(target) is not None
        if not known and target in VERBS:
            raise SettingsError(f"{target} is a verb, so write it directly after `dra dev`: dra dev {target}") from None
        if not known and (verb := did_you_mean(target, VERBS, cutoff=0.4)):
            raise SettingsError(f"{target!r} is neither a driver nor a verb{verb}") from None
        raise


def _nodes(args: argparse.Namespace, settings: Settings, faults: list[str]) -> list[str]:
    nodes = [settings.node_name or "node-1"] if args.nodes == 1 else [f"node-{i + 1}" for i in range(args.nodes)]
    if not 1 <= args.nodes <= _MAX_NODES:
        faults.append(f"--nodes {args.nodes} is not a number from 1 to {_MAX_NODES}")
    elif args.nodes > 1 and settings.node_name:
        faults.append("--node-name is for one node, but --nodes is above 1")
    if args.hosts and len(args.hosts) not in {1, args.nodes}:
        faults.append(
            f"--host is given {len(args.hosts)} times for {args.nodes} nodes: use it once for all nodes, or once for each node"
        )
    return nodes


def _images(given_images: list[str], faults: list[str]) -> dict[str, Path]:
    images: dict[str, Path] = {}
    for text in given_images:
        try:
            name, folder = parse_option(text)
            images[name] = folder
        except ImageError as e:
            faults.append(str(e))
    return images


def _certificate(args: argparse.Namespace, faults: list[str]) -> tuple[Path, Path] | None:
    if bool(args.api_cert_file) != bool(args.api_private_key_file):
        faults.append("--api-cert-file and --api-private-key-file must be used together")
        return None
    if not args.api_cert_file:
        return None
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
            args.api_cert_file, args.api_private_key_file
        )
    except OSError as e:  # ssl.SSLError is one
        faults.append(
            f"--api-cert-file {args.api_cert_file} with --api-private-key-file {args.api_private_key_file}: {e}"
        )
    return Path(args.api_cert_file), Path(args.api_private_key_file)


def _program(
    part: str, target: str, driver: type[Driver], settings: Settings, options: Mapping[str, str], own: Sequence[str]
) -> DriverProgram:
    """Returns the plugin or the controller of a driver."""
    argv, env = [sys.executable, "-m", dev_driver.__name__, part, target], _ENV
    if part == dev_driver.NODE:
        argv += _flags(Settings, options, OWN_SETTINGS | {"node_name"})
        if "health_interval" not in options and "HEALTH_INTERVAL" not in os.environ:
            argv += ["--health-interval", _HEALTH_INTERVAL]
    else:
        argv += _flags(ControllerSettings, options, OWN_SETTINGS | {"http_address"})
        env = env | {"HTTP_ADDRESS": ""}  # the plugin uses the address
    health = part == dev_driver.NODE and overrides(driver, "health")
    return DriverProgram(settings.driver_name or driver.name, [*argv, *own], env, _files(driver), health)


_ENV = {"PYTHONUNBUFFERED": "1"}


def _flags(kind: type[Settings], options: Mapping[str, str], without: frozenset[str]) -> list[str]:
    """Returns the options as command line flags for a driver's process."""
    out: list[str] = []
    for f in kind.options():
        if f.name in options and f.name not in without:
            out += [f.metadata["flag"]] if f.default is False else [f.metadata["flag"], str(options[f.name])]
    return out


def _files(driver: type[Driver]) -> list[Path]:
    """Returns the Python files whose changes restart the driver: its own file, and the files in its folder."""
    source = getattr(sys.modules.get(driver.__module__), "__file__", None)
    return sorted(Path(source).parent.glob("*.py")) if source else []
