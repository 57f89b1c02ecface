"""Arguments of the framework's commands. Imports are kept light, because a node's plugin loads this module."""

from __future__ import annotations

from ..base.settings import ControllerSettings, WebhookSettings
from .shell.options import add_settings
from .shell.output import add_output
from .shell.parsing import Group, Parser, command

DRIVER = "driver: a Python file, a package's folder, or module:Class"


@command(
    "run",
    "run a driver as the plugin of a node",
    "run:run",
    driver_options=True,
    group=Group.NODE,
    example="dra run acme.py --node-name worker-1",
)
def add_run(run: Parser) -> None:
    run.description = "Runs the plugin of a driver on a node until SIGTERM."
    run.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_settings(run)


@command(
    "controller",
    "run the controller of a driver",
    "controller:controller",
    driver_options=True,
    group=Group.NODE,
    example="dra controller acme.py --namespace acme",
)
def add_controller(controller: Parser) -> None:
    controller.description = "Publishes a driver's pools without a node, and binds claims, until SIGTERM."
    controller.add_argument("driver", metavar="DRIVER", help=DRIVER)
    add_settings(controller, ControllerSettings)


@command(
    "webhook",
    "run an admission webhook that rejects invalid parameters",
    "webhook:webhook",
    group=Group.NODE,
    example="dra webhook acme.py --tls-cert-file tls.crt --tls-private-key-file tls.key",
)
def add_webhook(webhook: Parser) -> None:
    webhook.description = (
        "Runs a validating admission webhook over HTTPS for claims, templates and classes, until SIGTERM."
    )
    webhook.add_argument("drivers", metavar="DRIVER", nargs="+", help=DRIVER + "; its parameters are validated")
    add_settings(webhook, WebhookSettings)


@command(
    "supervisor",
    "run the process supervisor that starts processes of claims",
    "supervisor:supervisor",
    group=Group.NODE,
    example="dra supervisor /run/acme/supervisor.sock",
)
def add_supervisor(supervisor: Parser) -> None:
    supervisor.description = (
        "Starts the processes of claims for a plugin in another container (PROCESS_SUPERVISOR), until SIGTERM. The processes outlive "
        "the plugin, and end with the supervisor's container."
    )
    supervisor.add_argument("socket", metavar="SOCKET", help="path of the Unix socket that it serves")


@command(
    "claims",
    "list or forget records of prepared claims",
    "claims:claims",
    group=Group.NODE,
    example="dra claims --driver-name gpu.example.com -o yaml",
)
def add_claims(claims: Parser) -> None:
    claims.description = (
        "Lists the records of prepared claims on this node, of one driver or of all; `forget UID` deletes a record and "
        "releases its devices. Run it on the node or in the plugin's pod, because it needs the kubelet's folder."
    )
    claims.add_argument("action", nargs="?", choices=("list", "forget"), default="list", help="default: list")
    claims.add_argument("uid", nargs="?", help="UID of the claim whose record is deleted")
    add_output(claims)
    claims.add_argument("--yes", action="store_true", help="forget without confirmation")
    add_settings(claims, only=("driver_name", "kubelet_root", "cdi_root", "lock_timeout"))


@command(
    "cleanup",
    "remove the files and slices of an uninstalled driver from this node",
    "cleanup:cleanup",
    group=Group.NODE,
    example="dra cleanup --driver-name gpu.example.com --node-name worker-1",
)
def add_cleanup(cleanup: Parser) -> None:
    cleanup.description = (
        "Removes an uninstalled driver's ResourceSlices, sockets, CDI specs and records of this node, "
        "unless its plugin runs. Without --node-name, the node's name is the host name of this machine."
    )
    cleanup.add_argument(
        "--force", action="store_true", help="remove the files and slices even if claims are still prepared"
    )
    add_output(cleanup)
    add_settings(
        cleanup,
        only=(
            "driver_name",
            "node_name",
            "kubeconfig",
            "service_account",
            "kubelet_root",
            "cdi_root",
            "api_timeout",
            "lock_timeout",
        ),
    )
