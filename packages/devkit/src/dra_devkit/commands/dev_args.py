"""Arguments of ``dra dev`` and of its verbs. Imports are kept light, because `dra --help` loads this module.

The devkit's entry point in the group ``dra.commands``: with this module, the arguments of its other commands are imported.
"""

from __future__ import annotations

import argparse
import functools
import math

from dra_kubeletplugin.cli.command_args import DRIVER
from dra_kubeletplugin.cli.shell.options import add_repeated, add_settings
from dra_kubeletplugin.cli.shell.output import add_output
from dra_kubeletplugin.cli.shell.parsing import Group, Parser, command

from .command_args import HOST, add_release

OWN_SETTINGS = frozenset({"kubeconfig", "service_account", "kubelet_root", "cdi_root", "pod_uid", "local_cluster"})
"""Settings that `dra dev` sets itself."""
VERBS = {
    "status": "show nodes, drivers, folders, and the injected faults",
    "print-link": "print a new link to the cluster's status page",
    "plug-function": "plug a PCI function into a described host",
    "unplug-function": "remove a PCI function from a described host",
    "write-sysfs": "write to a sysfs file of a described host, which has the same effect as in the kernel",
    "set-health": "set the health of a device, instead of the driver's reports",
    "restart-kubelet": "stop a node's kubelet and start it again",
    "reboot-node": "reboot a node: containers and drivers end, and CDI specs, writes to sysfs and the boot id are lost",
    "kill-driver": "kill a driver (SIGKILL); it is started again",
    "upgrade-driver": "start a new instance of a driver, then stop the old one",
    "cut-connections": "cut all connections to the API server",
    "drop-fields": "make the API server drop fields of slices, as with a feature gate off",
    "serve-versions": "make the API server serve only these versions of resource.k8s.io",
    "api-conflicts": "make the API server reject the next updates with a conflict",
    "api-throttling": "make the API server reject the next requests with 429",
    "api-delay": "make the API server delay each response",
    "api-outage": "make the API server unavailable for some seconds",
    "exit-container": "stop a simulated container",
    "stop": "stop the cluster",
}
OF_NODE = frozenset(
    {
        "plug-function",
        "unplug-function",
        "write-sysfs",
        "set-health",
        "restart-kubelet",
        "reboot-node",
        "kill-driver",
        "upgrade-driver",
    }
)
OF_DRIVER = frozenset({"set-health", "kill-driver", "upgrade-driver"})


@command(
    "dev",
    "run a local cluster with drivers, or change a running cluster",
    "dev:dev",
    driver_options=True,
    group=Group.AUTHOR,
    example="dra dev acme.py --host nvlink-server --nodes 2 --apply examples/",
)
def add_dev(dev: Parser) -> None:
    dev.description = "Starts a local cluster in one process, with drivers on its nodes, or changes a running cluster."
    dev.epilog = "Verbs for a cluster that runs in another shell (`dra dev VERB --help`): " + ", ".join(VERBS)
    text = DRIVER + "; without a DRIVER, start a driver in any language yourself"
    dev.add_argument("drivers", metavar="DRIVER", nargs="*", help=text)
    text = "number of nodes, named node-1 and so on; every driver runs on each"
    dev.add_argument("--nodes", metavar="N", type=int, default=1, help=text)
    text = HOST + "; use it once for all nodes, or once for each node"
    add_repeated(dev, "--host", metavar="HOST", dest="hosts", help=text)
    add_release(dev)
    text = "API versions to serve in addition to the defaults, such as resource.k8s.io/v1beta1=true"
    add_repeated(dev, "--runtime-config", metavar="VERSION=BOOL,...", help=text)
    text = "folder for all files of the cluster; by default a temporary folder"
    dev.add_argument("--state-dir", metavar="DIR", help=text)
    dev.add_argument("--api-address", metavar="HOST:PORT", default="127.0.0.1:0", help="address of the API server")
    text = "certificate of the API server, with --api-private-key-file; by default a generated one"
    dev.add_argument("--api-cert-file", metavar="FILE", help=text)
    dev.add_argument("--api-private-key-file", metavar="FILE", help="private key of the certificate")
    text = "manifest, or folder of manifests, to apply at start; may be repeated"
    add_repeated(dev, "--apply", metavar="FILE", help=text)
    text = "also run the drivers' controllers, as `dra controller` does"
    dev.add_argument("--controller", action="store_true", help=text)
    text = "run real containers with runc; by default containers are simulated"
    dev.add_argument("--containers", action="store_true", help=text)
    text = (
        "with --containers: root folder or OCI layout of an image; NAME * is for all other images; busybox is built in"
    )
    add_repeated(dev, "--image", metavar="NAME=FOLDER", dest="images", help=text)
    dev.add_argument("--no-reload", action="store_true", help="do not restart a driver when its file changes")
    add_settings(dev, without=OWN_SETTINGS)


def add_verb(name: str, verb: Parser) -> None:
    """Adds the arguments of ``dra dev NAME``."""
    verb.description = VERBS[name][0].upper() + VERBS[name][1:] + "."
    verb.add_argument("--state-dir", metavar="DIR", help="state folder of the running `dra dev`")
    add_output(verb)
    several = "needed if there are several" if name == "set-health" else "or all; needed if there are several"
    if name in OF_NODE:
        verb.add_argument("--node", metavar="NAME", default="", help=f"name of the node; {several}")
    if name in OF_DRIVER:
        text = f"name of the driver; {several}"
        verb.add_argument("--driver", metavar="NAME", default="", help=text)
    match name:
        case "plug-function":
            text = "address of an unplugged function, or a YAML file that describes one (- for standard input)"
            verb.add_argument("function", metavar="ADDRESS|FILE", help=text)
        case "unplug-function":
            verb.add_argument("address", metavar="ADDRESS", help="PCI address, such as 0000:17:00.0")
        case "write-sysfs":
            text = "path below sysfs, such as bus/pci/devices/0000:17:00.0/label"
            verb.add_argument("path", metavar="PATH", help=text)
            verb.add_argument("text", metavar="TEXT", help="content to write")
        case "set-health":
            _add_health(verb)
        case "restart-kubelet" | "kill-driver":
            default = 0.0 if name == "restart-kubelet" else 1.0
            text = f"time until it starts again ({default:g})"
            verb.add_argument("--down-for", type=_seconds, default=default, metavar="SECONDS", help=text)
        case "drop-fields":
            text = "names of fields, such as taints; without a FIELD, no field is dropped any more"
            verb.add_argument("fields", metavar="FIELD", nargs="*", help=text)
        case "serve-versions":
            text = "versions, such as v1beta2; without a VERSION, all versions are served again"
            verb.add_argument("versions", metavar="VERSION", nargs="*", help=text)
        case "api-conflicts" | "api-throttling":
            verb.add_argument("count", metavar="COUNT", nargs="?", type=int, default=1, help="number of requests (1)")
        case "api-delay" | "api-outage":
            verb.add_argument("seconds", metavar="SECONDS", type=_seconds, help="number of seconds")
        case "exit-container":
            verb.add_argument("pod", metavar="POD", help="name of the pod")
            verb.add_argument("-n", "--namespace", default="default", help="namespace of the pod (default)")
            verb.add_argument("-c", "--container", default="", help="name of the container; by default the first")
            verb.add_argument("--exit-code", type=int, default=0, help="exit code of the container (0)")


def _add_health(verb: Parser) -> None:
    verb.add_argument("device", metavar="DEVICE", help="name of the device in the driver's slices")
    states = ("healthy", "unhealthy", "unknown", "reported")
    verb.add_argument("health", choices=states, help="new health; reported: as the driver reports it")
    verb.add_argument("--message", default="", help="reason, which the pod's status shows")
    effects = ("NoSchedule", "NoExecute")
    verb.add_argument("--effect", choices=effects, default="", help="effect of the device's taint")


def _seconds(text: str) -> float:
    try:
        found = float(text.removesuffix("s"))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found


for _verb, _help in VERBS.items():
    command(f"dev {_verb}", _help, "dev_client:run_verb", package=__package__)(functools.partial(add_verb, _verb))
