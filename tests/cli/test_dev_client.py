"""Which cluster a verb of ``dra dev`` changes: never another one than KUBECONFIG selects."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin.cli import dev_client
from dra_kubeletplugin.errors import SettingsError
from dra_kubeletplugin.localcluster.dev.control import NAME


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of the only cluster that runs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root, socket.socket(socket.AF_UNIX) as server:
        monkeypatch.setattr(dev_client, "state_root", lambda: Path(root))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        state = Path(root, "dra-one")
        state.mkdir()
        server.bind(str(state / NAME))
        server.listen()
        yield state


def test_without_kubeconfig_it_is_the_only_one_that_runs(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dev_client._state(None) == running
    monkeypatch.setenv("KUBECONFIG", "")
    assert dev_client._state(None) == running


def test_a_kubeconfig_of_another_cluster_is_refused_with_the_options_to_use(
    running: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "config"
    other.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(other))
    with pytest.raises(SettingsError) as raised:
        dev_client._state(None)
    assert str(raised.value) == (
        f"KUBECONFIG {other} does not belong to a running `dra dev`: use --state-dir {running}, or unset KUBECONFIG"
    )
    assert dev_client._state("elsewhere") == Path("elsewhere")
    monkeypatch.setenv("KUBECONFIG", f"{other}:{running / 'kubeconfig'}")
    assert dev_client._state(None) == running
