"""Kubeconfig files with one cluster and at most one user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

EXEC_API = "client.authentication.k8s.io/v1"


def config_of(user: Any = None, **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"} | ({"user": "u"} if user is not None else {})}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"} | cluster}],
        "users": [{"name": "u", "user": user}] if user is not None else [],
    }


def write_config(folder: Path, config: Any, name: str = "config") -> str:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(path)
