"""KUBEBUILDER_ASSETS: start, readiness and end of etcd and kube-apiserver, with fake binaries from fake_control_plane.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dra_devkit.testing.controlplane import ControlPlane, ControlPlaneError
from packages.devkit.tests.testing.fake_control_plane import install_binaries, read_log
from tests.helpers.author_project import FUNCTIONS, author, run
from tests.helpers.command_lines import command_lines_with
from tests.helpers.waiting import block_until

pytest_plugins = ["pytester"]
__all__ = ["author"]


@pytest.mark.full
def test_the_tests_of_an_author_run_against_another_api_server(
    author: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is a separate process with HTTPS and a token, so the kit must use HTTP only."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(install_binaries(tmp_path / "assets")))
    author.makepyfile(
        test_a_functions=FUNCTIONS,
        test_b_next="""
        import pytest
        from dra_devkit.testing import FaultError

        def test_the_previous_test_left_no_objects(local_cluster, api):
            kinds = ("Pod", "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice", "Event")
            assert {kind: api.get_all(kind) for kind in kinds} == dict.fromkeys(kinds, [])

        def test_a_test_leaves_a_workload_and_config_maps(local_cluster, api):
            spec = {"selector": {"matchLabels": {"app": "a"}}, "template": {
                "metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}}
            api.apply(
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "left"}, "spec": spec},
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "left"}},
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "server", "namespace": "kube-system"}},
            )

        def test_they_are_deleted_except_the_config_map_of_the_server(local_cluster, api):
            assert api.get_all("Deployment", api_version="apps/v1") == api.get_all("Pod") == []
            assert [o["metadata"]["name"] for o in api.get_all("ConfigMap")] == ["server"]

        def test_a_running_pod_is_removed_after_the_test(node):
            node.run_pod()

        def test_the_pod_is_removed(local_cluster, api):
            assert api.get_all("Pod") == api.get_all("ResourceClaim") == []
            with pytest.raises(FaultError, match="unset KUBEBUILDER_ASSETS"):
                api.conflict()
        """,
    )
    result = run(author)
    result.assert_outcomes(passed=6)
    (folder_mark,) = author.path.parent.rglob("lives")
    assert read_log(folder_mark.parent) == [
        "etcd serves",
        "kube-apiserver serves",
        "kube-apiserver has ended",
        "etcd has ended",
    ]


def test_a_program_that_ends_is_reported_with_its_command_and_last_output(tmp_path: Path) -> None:
    assets = install_binaries(tmp_path / "assets", kube_apiserver="echo 'unknown flag: --secure-port' >&2; exit 3")
    with (
        pytest.raises(
            ControlPlaneError, match=r"kube-apiserver .*--secure-port=\d+.* has ended with 3: unknown flag"
        ) as e,
        ControlPlane(assets, tmp_path / "plane", "DRADeviceTaints=false"),
    ):
        pass
    assert "--feature-gates=DRADeviceTaints=false" in str(e.value)


@pytest.mark.full
def test_a_control_plane_that_never_gets_ready_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo waiting; while :; do sleep 0.05; done"
    assets = install_binaries(tmp_path / "assets", etcd=script, kube_apiserver=script)
    plane = ControlPlane(assets, tmp_path / "plane", start=5.0, stop=0.2)
    with pytest.raises(ControlPlaneError, match=r"is not ready after 5 s: there is no .*apiserver.crt yet; waiting"):
        plane.__enter__()
    assert [p.returncode for p in plane.ended] == [-9, -9]


def test_a_folder_without_the_programs_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ControlPlaneError, match="this folder contains no executable etcd"):
        ControlPlane(tmp_path, tmp_path / "plane").__enter__()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_programs_end_after_pytest_is_killed_before_any_line(tmp_path: Path) -> None:
    """A killed session, for example at a CI time limit, cannot run its own cleanup."""
    script = "trap '' TERM; for _ in $(seq 1000); do sleep 0.1; done"
    assets = install_binaries(tmp_path / "assets", etcd=script, kube_apiserver=script)
    command = [
        sys.executable,
        "-m",
        "packages.devkit.tests.testing.killed_control_plane",
        str(assets),
        str(tmp_path / "plane"),
    ]
    kills, max_started = 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout
        for kills, line in enumerate(session.stdout, 1):  # noqa: B007 - the number of the last line
            max_started = max(max_started, int(line))
            block_until(lambda: not programs(tmp_path), lambda: programs(tmp_path))
    assert session.returncode == 0
    assert (max_started, kills > 20) == (2, True)  # some kills happened while both programs ran


def programs(folder: Path) -> list[str]:
    """Returns the command lines of processes that contain the folder, except the session's."""
    return [line for line in command_lines_with(str(folder)) if "killed_control_plane" not in line]
