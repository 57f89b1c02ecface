"""Arguments of the devkit's commands except ``dra dev``. Imports are kept light, because `dra --help` loads this module."""

from __future__ import annotations

from pathlib import Path

from dra_kubeletplugin.cli.command_args import DRIVER
from dra_kubeletplugin.cli.shell.options import add_repeated, add_settings
from dra_kubeletplugin.cli.shell.output import add_output
from dra_kubeletplugin.cli.shell.parsing import Group, Parser, command

KINDS = ("pci", "chardev", "sdk")
LIVE_NAMES = ("objects", "pods", "nodes", "namespaces", "devices", "drivers")
"""What ``dra completion`` can print for its scripts."""
RELEASES = "1.34 to 1.37 (default: 1.36)"
HOST = "described host to use instead of this machine: a YAML file, or the name of a description in the package"


def add_release(parser: Parser) -> None:
    """Adds the options that select a release of Kubernetes and its feature gates."""
    text = f"release of Kubernetes: {RELEASES}"
    parser.add_argument("--kubernetes", metavar="RELEASE", default="", help=text)
    text = "feature gates that differ from the defaults of the release; --gates is the same option"
    add_repeated(parser, "--feature-gates", "--gates", metavar="NAME=BOOL,...", help=text)


@command(
    "new",
    "create a driver's package, with tests, image, manifests and CI",
    "new:new",
    group=Group.AUTHOR,
    example="dra new acme-fpga --kind pci --vendor-id 10ee --device-id 5000",
)
def add_new(new: Parser) -> None:
    new.description = (
        "Creates a folder with a driver's package that works at once: `cd NAME && make test && make dev`. "
        "On a terminal it asks for missing options. It never overwrites a file."
    )
    new.add_argument("name", metavar="NAME", help="name of the folder, the package and the image, such as acme-fpga")
    new.add_argument(
        "--kind", choices=KINDS, help="source of the devices: PCI functions, device files, or a vendor's library"
    )
    new.add_argument(
        "--driver-name", metavar="NAME", help="name of the driver in Kubernetes; by default NAME.example.com"
    )
    new.add_argument("--vendor-id", metavar="ID", help="with --kind pci: the cards' PCI vendor id, four hex digits")
    text = "with --kind pci: the cards' PCI device id, four hex digits; `lspci -nn` shows both ids"
    new.add_argument("--device-id", metavar="ID", help=text)
    text = "features to include: any of partitions, shared-step, status, health (--kind sdk always has health)"
    new.add_argument("--with", dest="features", metavar="NAME,...", help=text)
    text = "parent of the package's folder (.); created if it does not exist"
    new.add_argument("-C", "--directory", metavar="DIR", type=Path, default=Path(), help=text)
    add_output(new)


@command(
    "inspect",
    "show the PCI functions and what a driver would publish",
    "inspect:inspect",
    driver_options=True,
    group=Group.AUTHOR,
    example="dra inspect acme.py --host nvlink-server",
)
def add_inspect(inspect: Parser) -> None:
    inspect.description = (
        "Shows this machine's PCI functions, the pools that a driver would publish, and why it would not publish some devices. "
        "Needs no cluster."
    )
    inspect.add_argument("driver", metavar="DRIVER", nargs="?", help=DRIVER)
    inspect.add_argument("--host", metavar="HOST", help=HOST)
    inspect.add_argument(
        "--describe-host", action="store_true", help="print only this machine's description for --host"
    )
    inspect.add_argument(
        "--describe-file",
        metavar="PATH",
        action="append",
        default=[],
        type=Path,
        help="with --describe-host: additional file or folder below /proc or /sys to include in the description; may be repeated",
    )
    inspect.add_argument("--controller", action="store_true", help="show what `dra controller` would publish")
    add_output(inspect)
    add_settings(
        inspect,
        only=(
            "driver_name",
            "node_name",
            "sysfs_root",
            "dev_root",
            "proc_root",
            "start_timeout",
            "discovery_timeout",
            "list_attributes",
        ),
    )


@command(
    "validate",
    "validate claims, templates, classes and pods in files",
    "validate:validate",
    group=Group.AUTHOR,
    example="dra validate examples/ --driver acme.py --kubernetes 1.35",
)
def add_validate(validate: Parser) -> None:
    validate.description = (
        "Validates objects in files as an API server does, and their opaque parameters as the drivers do. Needs no cluster. "
        "An object that is valid in another release, or with a feature gate, is reported with that release or gate."
    )
    validate.epilog = (
        "Exit code: 0 all objects are valid; 1 an object is invalid; 2 a file cannot be read; 3 an object was not validated, or "
        "there was none. Documents of a folder that are no objects of the API are named and do not count; files that `dra deploy` wrote "
        "are not named."
    )
    validate.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="YAML or JSON file with objects, or a folder of such files; - for standard input",
    )
    text = DRIVER + "; it validates the parameters; may be repeated"
    add_repeated(validate, "--driver", metavar="DRIVER", dest="drivers", help=text)
    validate.add_argument("--driver-name", metavar="NAME", help="name of the driver; by default the name in its class")
    validate.add_argument(
        "--host",
        metavar="HOST",
        help="with --driver: described host; warns if a selector names an attribute that none of its devices has",
    )
    add_release(validate)
    add_output(validate)


@command(
    "schema",
    "print the JSON Schema of a driver's opaque parameters",
    "validate:schema",
    group=Group.AUTHOR,
    example="dra schema acme.py --kind GpuConfig",
)
def add_schema(schema: Parser) -> None:
    schema.description = (
        "Prints the JSON Schema of the opaque parameters that a driver accepts, of all kinds in their newest versions."
    )
    schema.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_output(schema, "json")
    schema.add_argument("--kind", metavar="KIND", help="print only the schema of this kind or apiVersion")


@command(
    "deploy",
    "render a driver's manifests from its values",
    "deploy:deploy",
    group=Group.AUTHOR,
    example="dra deploy deploy/values.yaml",
)
def add_deploy(deploy: Parser) -> None:
    deploy.description = (
        "Writes kustomization.yaml, deviceclass.yaml and the files that they use, in the folder of VALUES "
        "(docs/deploy.md)."
    )
    deploy.add_argument("values", metavar="VALUES", nargs="?", help="values.yaml of a driver, or its folder")
    text = "file with values that replace values of VALUES, as in Helm; may be repeated"
    add_repeated(deploy, "-f", "--values", dest="override_files", metavar="FILE", help=text)
    text = (
        "; the command validates the driver's options in VALUES; with --shared-dir, the Helm chart validates them. "
        "By default, the driver of the package that contains VALUES"
    )
    deploy.add_argument("--driver", metavar="DRIVER", help=DRIVER + text)
    deploy.add_argument(
        "-C", "--directory", metavar="FOLDER", help="folder to write to; by default, the folder of VALUES"
    )
    text = "existing `kustomize` base to use instead of a new one: a folder relative to FOLDER, or a URL"
    deploy.add_argument("--kustomize-base", metavar="PLACE", default="", help=text)
    text = "write the Helm chart of this driver below FOLDER, with VALUES as its defaults, instead of the kustomization"
    deploy.add_argument("--chart", metavar="FOLDER", help=text)
    text = "version of the chart; by default, the version in the pyproject.toml of the package that contains VALUES"
    deploy.add_argument("--chart-version", metavar="VERSION", help=text)
    text = "write the files that all drivers share: kustomize components, the Helm chart, alerts and a dashboard"
    deploy.add_argument("--shared-dir", metavar="FOLDER", help=text)
    text = "write nothing; end with exit code 1 if the files differ from the values"
    deploy.add_argument("--check", action="store_true", help=text)
    add_output(deploy)


@command(
    "completion",
    "print a completion script for a shell",
    "completion:completion",
    example='eval "$(dra completion bash)"',
)
def add_completion(completion: Parser) -> None:
    completion.description = (
        'Prints a completion script: `eval "$(dra completion bash)"`, '
        "or save it in the shell's folder for completions."
    )
    text = f"shell that runs the script; for the script itself: {', '.join(LIVE_NAMES)} print names of the cluster"
    choices = ("bash", "zsh", "fish", *LIVE_NAMES)
    completion.add_argument("shell", metavar="SHELL", choices=choices, help=text)
    text = "with names of the cluster: the command line up to the cursor"
    completion.add_argument("--line", metavar="TEXT", default="", help=text)
