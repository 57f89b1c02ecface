"""Fixtures for all tests: markers that say what they need, and drivers to test with."""

from __future__ import annotations

import os
import shutil

import pytest

from dra_kubeletplugin.local.runtime.oci import Podman


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _, why_not = Podman.find()
    reasons = {
        "root": None if os.geteuid() == 0 else "needs root",
        "podman": why_not or None,
        "kubectl": None if shutil.which("kubectl") else "needs kubectl on the PATH",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
