"""`dra conformance`: the catalogue, mistakes of a user, and the reports of a run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dra_conformance import CATALOGUE, ConformanceProfile
from dra_conformance.api_server import NODE
from dra_conformance.driver_command import DriverCommand
from dra_conformance.harness import Harness
from dra_kubeletplugin import cli
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from tests.helpers.conformance.runs import PLAIN


def test_list_prints_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "list"]) == Exit.SUCCESS
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CATALOGUE)
    for action in ("list", "explain"):
        assert cli.main(["conformance", action, "-o", "json"]) == Exit.SUCCESS
        assert {c["id"] for c in json.loads(capsys.readouterr().out)["checks"]} == set(CATALOGUE)
    assert cli.main(["conformance", "list", "SEC", "PRE-001"]) == Exit.SUCCESS
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["PRE-001", "SEC-001", "SEC-002"]


def test_explain_describes_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "explain", "SLC-004"]) == Exit.SUCCESS
    out = capsys.readouterr().out
    assert out.startswith("SLC-004 (MUST): the driver creates deleted slices again")
    assert "steps:  Deletes the slices and waits until the same devices are published." in out
    assert "if not:" in out
    assert "source:" in out
    assert "MUST: the kubelet fails, or resources leak" in out
    assert "dra conformance run SLC-004" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--driver-cmd", "x", "--json", "/no/such/a.json"], "there is no folder /no/such"),
        (["run"], "use either --driver-cmd with the command"),
        (["run", "SLC-044", "--driver-cmd", "x"], "there is no check SLC-044, did you mean 'SLC-004'"),
        (["explain", "XYZ"], "there is no check XYZ"),
        (["run", "--driver-cmd", "x", "--profile", "/no/such.toml"], "the profile /no/such.toml cannot be read"),
        (["run", "--driver-cmd", "x $NO_SUCH_NAME"], "uses the variable NO_SUCH_NAME, which is not set"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["conformance", *words]) == Exit.USAGE
    assert message in capsys.readouterr().err


def test_a_command_without_an_action_names_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["conformance"])
    assert "dra: the following arguments are required: run|list|explain; see" in capsys.readouterr().err


def test_a_run_writes_all_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUG", "claim of another UID")
    (tmp_path / "role.yaml").write_text(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\n"
        "rules: [{apiGroups: ['*'], resources: ['*'], verbs: [get]}]\n"
    )
    files = {form: tmp_path / form for form in ("junit", "json", "markdown")}
    options = [word for form, path in files.items() for word in (f"--{form}", str(path))]
    options += ["--transcripts", str(tmp_path / "calls"), "--rbac", str(tmp_path / "role.yaml"), "--strict"]
    code = cli.main(["conformance", "run", "PRE-004", "SEC-001", "REG-001", "--driver-cmd", PLAIN, *options])
    assert code == Exit.NEGATIVE
    out = capsys.readouterr().out
    assert "FAIL  PRE-004" in out
    assert "1 MUST failed (PRE-004), 1 SHOULD failed (SEC-001)" in out
    assert [o["status"] for o in json.loads(files["json"].read_text())["outcomes"]] == ["passed", "failed", "failed"]
    assert files["junit"].read_text().startswith("<?xml")
    assert "img.shields.io" in files["markdown"].read_text()
    transcript = (tmp_path / "calls/PRE-004.txt").read_text()
    assert transcript.count("NodePrepareResources") == out.count("NodePrepareResources"), (
        "the transcript contains a call twice"
    )
    assert "-> ok (" in transcript
    assert "    request:\n      claims {\n        namespace:" in transcript
    assert f"All calls of PRE-004, SEC-001 and the driver's output are in {tmp_path / 'calls'}" in out


def test_a_run_prints_one_document_that_equals_the_report_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["conformance", "run", "REG-001", "SEC-001", "--driver-cmd", PLAIN, "-o", "json"]
    assert cli.main([*words, "--json", str(tmp_path / "a.json")]) == Exit.SUCCESS
    found = json.loads(capsys.readouterr().out)
    outcomes = found["outcomes"]
    assert [(o["check"]["id"], o["status"]) for o in outcomes] == [("REG-001", "passed"), ("SEC-001", "skipped")]
    assert outcomes[1]["reason"]
    assert found == json.loads((tmp_path / "a.json").read_text())


def test_fail_on_skip_names_the_skipped_check(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["conformance", "run", "REG-001", "SEC-001", "--driver-cmd", PLAIN, "--fail-on-skip"]
    assert cli.main(words) == Exit.NEGATIVE
    assert "dra: --fail-on-skip: SEC-001 was skipped" in capsys.readouterr().err


def test_a_run_with_a_driver_that_is_never_ready_exits_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["conformance", "run", "--driver-cmd", "sh -c 'echo broken; exit 7'"]) == Exit.UNKNOWN
    found = capsys.readouterr()
    assert "dra: the driver ended with exit code 7" in found.err
    assert "broken" in found.err
    assert "the driver: no check ran" in found.out


def test_a_failure_without_transcripts_names_the_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUG", "unprepare of an unknown claim")
    assert cli.main(["conformance", "run", "UNP-001", "--driver-cmd", PLAIN]) == Exit.NEGATIVE
    out = capsys.readouterr().out
    assert "NodeUnprepareResources (claim-1) -> ok (" in out
    assert "NodeUnprepareResources (claim-1) -> error for claim-1: claim " in out
    assert "are written with --transcripts FOLDER" in out


def test_attach_without_an_api_server_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert cli.main(["conformance", "run", "--attach"]) == Exit.USAGE
    assert "set KUBECONFIG to a kubeconfig of the cluster" in capsys.readouterr().err


async def test_attach_counts_skipped_checks_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Harness(DriverCommand.parse(PLAIN), ConformanceProfile()) as node:
        await node.start()
        monkeypatch.setenv("KUBECONFIG", str(node.kubeconfig))
        words = ["REG-001", "PRE-001", "SLC-003", "--kubelet-root", str(node.kubelet_root), "--node-name", NODE]
        code = await asyncio.to_thread(cli.main, ["conformance", "run", "--attach", *words])
    assert code == Exit.SUCCESS
    out = capsys.readouterr().out
    assert "ok    REG-001" in out
    assert "PRE-001" not in out
    assert "1 passed (1 MUST), 2 skipped" in out
    assert "2 of the skipped checks would change the node: run them with --driver-cmd" in out
