"""A verb of ``dra dev`` changes only the cluster that KUBECONFIG selects."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_devkit.commands import dev_client
from dra_devkit.localcluster.dev.control import NAME
from dra_kubeletplugin.errors import SettingsError


@pytest.fixture
def running_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of the only running cluster."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root, socket.socket(socket.AF_UNIX) as server:
        monkeypatch.setattr(dev_client, "state_root", lambda: Path(root))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        state = Path(root, "dra-one")
        state.mkdir()
        server.bind(str(state / NAME))
        server.listen()
        yield state


def test_without_kubeconfig_a_verb_selects_the_only_running_cluster(
    running_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dev_client.state_folder(None) == running_state
    monkeypatch.setenv("KUBECONFIG", "")
    assert dev_client.state_folder(None) == running_state


def test_a_kubeconfig_of_another_cluster_is_refused_with_the_options_to_use(
    running_state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "config"
    other.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(other))
    with pytest.raises(SettingsError) as raised:
        dev_client.state_folder(None)
    assert str(raised.value) == (
        f"KUBECONFIG {other} does not belong to a running `dra dev`: use --state-dir {running_state}, or unset KUBECONFIG"
    )
    assert dev_client.state_folder("elsewhere") == Path("elsewhere")
    monkeypatch.setenv("KUBECONFIG", f"{other}:{running_state / 'kubeconfig'}")
    assert dev_client.state_folder(None) == running_state
