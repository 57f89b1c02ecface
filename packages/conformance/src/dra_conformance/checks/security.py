"""SEC: permissions. SEC-001 runs after the other checks, because it reads the requests of the whole run."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Mapping
from typing import Any

from dra_devkit.localcluster.apiserver.access import covers

from ..catalogue import CheckSkipped, expect, should
from ..harness import Harness
from ..kubelet_client import find_sockets
from .restart import state_files

_REVIEWS = "authorization.k8s.io"  # its requests need no rule, because every user may read its own permissions
_OTHERS_WRITE = 0o002


@should(
    "SEC-001",
    "uses only verbs that its RBAC rules allow",
    consequence="the driver works in tests and fails in a cluster with its own manifests",
    source="RBAC; option --rbac FILE",
)
async def permissions(h: Harness) -> None:
    """Compares the requests of the run with the rules of --rbac, without reviews of own permissions and without responses 404."""
    rules: Iterable[Mapping[str, Any]] | None = h.facts.get("rbac")
    if rules is None:
        raise CheckSkipped("no rules were given: use --rbac FILE with the driver's ClusterRole")
    # To detect the version of the server, a driver may send requests for kinds that the server does not serve.
    used = {c.access for c in h.transcript.calls if c.access.resource and c.status != 404}
    refused = [a for a in used if a.group != _REVIEWS and not any(covers(rule, a) for rule in rules)]
    shown = sorted({f"{a.verb} {a.full}{'.' + a.group if a.group else ''}" for a in refused})
    expect(not shown, "requests within the rules", f"not allowed: {', '.join(shown)}")


@should(
    "SEC-002",
    "keeps its sockets and state files closed for writes of other users",
    consequence="any user of the node can prepare claims or change the driver's records",
    source="Linux: the mode of a socket decides who may connect",
    attach=True,
)
async def modes(h: Harness) -> None:
    """Prepares a claim, and reads the modes of sockets and state files."""
    if h.may_change:
        await h.prepared(await h.claim())
        paths = [*find_sockets(h.kubelet_root), *state_files(h.plugins)]
    else:  # only the driver's own files, because a real node's folders also contain volumes and files of other drivers
        folder = h.plugin.endpoint.parent
        own = state_files(folder) if folder.parent == h.plugins else []
        paths = [h.plugin.info.socket, h.plugin.endpoint, *own]
    found = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the driver deleted the file during the check
            found[path.name] = path.stat().st_mode
    open_paths = [f"{name} ({stat.S_IMODE(mode):04o})" for name, mode in found.items() if mode & _OTHERS_WRITE]
    expect(not open_paths, "no socket or state file that other users may write", ", ".join(open_paths))
