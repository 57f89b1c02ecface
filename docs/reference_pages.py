"""Renders the pages of all errors and all options for `docs/generate.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field
from typing import Any

from dra_conformance import CATALOGUE, Requirement
from dra_conformance.catalogue import GROUPS
from dra_kubeletplugin import errors
from dra_kubeletplugin.base.settings import ControllerSettings, Settings, WebhookSettings
from dra_kubeletplugin.base.telemetry import metrics
from dra_kubeletplugin.errors import DraError
from dra_kubeletplugin.kube.errors import CLASSES


def error_classes() -> list[type[DraError]]:
    """Returns all error classes of the errors module, sorted by code."""
    found: list[type[DraError]] = []
    queue: list[type[DraError]] = [DraError]
    while queue:
        cls = queue.pop()
        if cls.__module__ == errors.__name__:  # classes of other modules have the code of their base
            found.append(cls)
        queue.extend(cls.__subclasses__())
    return sorted(found, key=lambda c: c.code)


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        "Generated from `src/dra_kubeletplugin/errors.py` by `make docs`. In a pod's event, the reason comes first and the",
        "code last. The text is the same at each attempt. Search the plugin's log for this text: the line has the fields",
        "`error_code` and `claim`, and an operation id. All other lines of the same call have the same operation id.",
        "",
        "| code | reason | class | what to do |",
        "|---|---|---|---|",
    ]
    lines += [f"| {c.code} | `{c.reason}` | `{c.__name__}` | {c.help} |" for c in error_classes()]
    lines += [
        "",
        "## Errors of the API server",
        "",
        "For code that calls the API server. `KubeClient` raises a subclass of `ApiError` for each status in this table. All have the",
        "code `DRA-E006`. Import the classes from `dra_kubeletplugin.kube.errors`. Any other status, and a failure of the network,",
        "is an `ApiError` itself. Its property `unreachable` is true if a retry may succeed.",
        "",
        "| status | class | meaning |",
        "|---|---|---|",
    ]
    lines += [f"| {c.status} | `{c.__name__}` | {c.__doc__} |" for c in CLASSES]
    return "\n".join(lines) + "\n"


def conformance_page() -> str:
    lines = [
        "# Checks of conformance",
        "",
        "For authors who want to know why a check of [`dra conformance`](conformance.md) failed, or which rules the suite checks.",
        "Generated from `packages/conformance/src/dra_conformance/checks` by `make docs`. Ids are never renumbered.",
        "",
        " ".join(f"{level}: {level.meaning}." for level in Requirement),
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| id | level | the driver | if not | source |", "|---|---|---|---|---|"]
        for c in (c for c in CATALOGUE.values() if c.group == group):
            cells = (
                " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
                for text in (c.text, c.consequence, c.source)
            )
            lines.append(f"| {c.id} | {c.level} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    lines = [
        "# Options",
        "",
        "Generated from `src/dra_kubeletplugin/base/settings` by `make docs`. A driver may have "
        "[options of its own](drivers.md#options-of-your-own): `dra run DRIVER --help` lists them too.",
        "",
    ]
    lines += _options(Settings.options())
    for kind, title, command in (
        (ControllerSettings, "Controller", "controller"),
        (WebhookSettings, "Webhook", "webhook"),
    ):
        shared = [f for f in kind.options() if f in Settings.options()]
        named = ", ".join(f"`{f.metadata['flag']}`" for f in shared)
        lines += ["", f"## {title}", "", f"`dra {command}` takes {named}, and:", ""]
        lines += _options(f for f in kind.options() if f not in shared)
    return "\n".join(lines) + "\n"


def _options(options: Iterable[Field[Any]]) -> list[str]:
    out = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for f in options:
        default = f"{f.default:g}s" if isinstance(f.default, float) else str(f.default)
        out.append(f"| `{f.metadata['flag']}` | `{f.metadata['env']}` | `{default or ' '}` | {f.metadata['help']} |")
    return out


def metrics_page() -> str:
    """Returns the documentation page that lists all metrics, in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Generated from `src/dra_kubeletplugin/base/telemetry/metrics.py` by `make docs`. `/metrics` of plugin and controller",
        "serves them in Prometheus' text format, if `HTTP_ADDRESS` is set. Names do not depend on the driver.",
        "A driver can have [metrics of its own](monitoring.md#metrics-of-a-driver).",
        "[Monitoring](monitoring.md) has alerts and a dashboard that use them.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for kind, table in (("counter", metrics.COUNTERS), ("gauge", metrics.GAUGES), ("histogram", metrics.HISTOGRAMS)):
        for name, (text, labels) in table.items():
            shown = ", ".join(f"`{label}`" for label in labels) or " "
            lines.append(f"| `{metrics.PREFIX}{name}` | {kind} | {shown} | {text} |")
    return "\n".join(lines) + "\n"
