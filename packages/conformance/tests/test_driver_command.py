"""The command of a driver: how it is read, and the messages for an author's mistakes."""

from __future__ import annotations

import os
import shutil

import pytest

from dra_conformance.driver_command import DriverCommand
from dra_kubeletplugin.errors import SettingsError


@pytest.mark.parametrize(("user", "step"), [(0, "add the capability SYS_ADMIN"), (1000, "run the command with sudo")])
def test_fixed_paths_without_mount_namespaces_name_the_next_step(
    user: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: None)  # as if no mount namespace can be created
    with pytest.raises(SettingsError, match=step):
        DriverCommand.parse("driver", fixed_paths=True)
