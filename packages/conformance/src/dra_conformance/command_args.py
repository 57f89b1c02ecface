"""Arguments of ``dra conformance``. Imports are kept light, because `dra --help` loads this module."""

from __future__ import annotations

from dra_devkit.commands.command_args import HOST
from dra_kubeletplugin.cli.shell.options import add_repeated
from dra_kubeletplugin.cli.shell.output import add_output
from dra_kubeletplugin.cli.shell.parsing import Group, Parser, command


@command(
    "conformance",
    "check a driver in any language against the kubelet's and the API server's rules",
    "command:conformance",
    group=Group.ANY_DRIVER,
    example="dra conformance run --driver-cmd './acme-driver --v=4' --junit report.xml",
)
def add_conformance(conformance: Parser) -> None:
    conformance.description = (
        "Runs a driver with a kubelet, an API server and a reader of CDI specs, and checks its behavior. "
        "`list` prints checks, `explain ID` describes checks."
    )
    conformance.epilog = (
        "Exit codes of `run`: 0 no MUST failed; 1 a MUST failed; 2 wrong options or files; "
        "3 the driver never became ready or published no device; 4 with --strict, a SHOULD failed. "
        "The driver gets KUBELET_ROOT, PLUGINS_REGISTRY, PLUGIN_DATA_DIR, CDI_ROOT, KUBECONFIG, "
        "NODE_NAME, POD_UID, POD_NAMESPACE and POD_NAME in its environment."
    )
    conformance.add_argument(
        "action",
        metavar="run|list|explain",
        choices=("run", "list", "explain"),
        help="run checks, list them, or explain them",
    )
    text = "id or group of a check, such as SLC-004 or SLC; by default all checks"
    conformance.add_argument("checks", metavar="CHECK", nargs="*", default=[], help=text)
    text = "command that starts the driver; runs without a shell; $NAME is replaced with that variable of the driver's environment"
    conformance.add_argument("--driver-cmd", metavar="COMMAND", default="", help=text)
    text = "TOML file with facts about the driver, checks to skip, and expected failures (docs/conformance.md)"
    conformance.add_argument("--profile", metavar="FILE", help=text)
    conformance.add_argument(
        "--host", metavar="HOST", default="", help=f"{HOST}; the driver gets its sysfs as SYSFS_ROOT"
    )
    text = "run the driver in a mount namespace in which /var/lib/kubelet and /var/run/cdi are the suite's folders; needs root"
    conformance.add_argument("--fixed-paths", action="store_true", help=text)
    text = (
        "check a driver that runs on this node, with the API server of KUBECONFIG; only checks that change nothing run"
    )
    conformance.add_argument("--attach", action="store_true", help=text)
    text = "with --attach: folder that the kubelet uses as its --root-dir"
    conformance.add_argument(
        "--kubelet-root", metavar="ROOT", default="/var/lib/kubelet", help=f"{text} (/var/lib/kubelet)"
    )
    text = "with --attach: name of the driver; needed if several are registered"
    conformance.add_argument("--driver-name", metavar="NAME", default="", help=text)
    text = "with --attach: name of this node; by default NODE_NAME, else the name of the machine"
    conformance.add_argument("--node-name", metavar="NAME", default="", help=text)
    text = "ClusterRole or Role of the driver, for SEC-001; may be repeated"
    add_repeated(conformance, "--rbac", metavar="FILE", help=text)
    conformance.add_argument("--strict", action="store_true", help="end with exit code 4 if a SHOULD failed")
    text = "end with exit code 1 if a check has the result skip, for certification"
    conformance.add_argument("--fail-on-skip", action="store_true", help=text)
    for form, shown in (("junit", "JUnit XML"), ("json", "JSON"), ("markdown", "Markdown with a badge")):
        conformance.add_argument(f"--{form}", metavar="FILE", help=f"write a report as {shown}")
    text = "write the calls and the output of the driver for each failed check to a file in FOLDER"
    conformance.add_argument("--transcripts", metavar="FOLDER", help=text)
    add_output(conformance)
