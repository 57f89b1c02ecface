"""Text of users and other drivers has no effect on a terminal, on the screen, on pages, or on the form of JSON and YAML.

A user who may create claims chooses selector literals, annotations and opaque parameters. Another driver chooses attributes,
conditions and network data. The author of a file chooses all of its text. The server in these tests validates nothing.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.claims.record import checked_line, checked_text, encode_record
from dra_kubeletplugin.claims.store.records import file_name
from dra_kubeletplugin.cli import main
from packages.tools.tests.objects import TEMPLATE, workload
from tests.helpers.crash.record_stores import DRIVER, make_record
from tests.helpers.hostile_text import HOSTILE, HostileServer, assert_clean, cluster, hostile
from tests.helpers.kubeconfigs import config_of, write_config


@pytest.fixture(params=["free text", "everything"])
def objects(request: pytest.FixtureRequest) -> list[JSON]:
    result: list[JSON] = hostile(cluster(), everything=request.param == "everything")
    return result


@pytest.fixture
def kubeconfig(objects: list[JSON], tmp_path: Path) -> Iterator[str]:
    with HostileServer(objects) as server:
        yield write_config(tmp_path, config_of(server=server.url))


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Runs a command with each output format, and returns the output in text format."""
    texts = {}
    for form in ("text", "json", "yaml"):
        code = main([*argv, "-o", form])
        captured = capsys.readouterr()
        where = f"dra {' '.join(argv)[:60]} -o {form}"
        assert code in {0, 1, 2, 3}, where
        assert "Traceback" not in captured.err, captured.err
        assert_clean(captured.out, where)
        assert_clean(captured.err, f"{where}, standard error")
        if captured.out and form != "text":
            assert (json.loads if form == "json" else yaml.safe_load)(captured.out) is not None
        texts[form] = captured.out + captured.err
    return texts["text"]


COMMANDS = ["explain", "explain pod/p", "explain pod/q", "explain pod/runs", "explain claim/has", "top --once"]


@pytest.mark.parametrize("words", COMMANDS)
def test_hostile_text_of_a_cluster_has_no_effect_on_the_terminal(
    words: str, kubeconfig: str, objects: list[JSON], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words.split()
    names = [o["metadata"]["name"] for o in objects if o["kind"] == ("Pod" if "pod/" in words else "ResourceClaim")]
    if len(argv) > 1 and "/" in argv[1]:  # the names contain hostile text too
        argv[1] = next(f"{argv[1].partition('/')[0]}/{n}" for n in names if n.startswith(argv[1].partition("/")[2]))
    namespace = objects[-1]["metadata"]["namespace"]
    shown = run(capsys, *argv, "--kubeconfig", kubeconfig, "-n", namespace)
    if words in {"explain", "explain pod/p"} or namespace != "default":
        assert "\ufffd" in shown, "the output contains no hostile text, so the test checks nothing"


def test_hostile_text_in_findings_of_doctor_has_no_effect_on_the_terminal(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "\ufffd" in run(capsys, "doctor", "--kubeconfig", kubeconfig, "--no-host")


def test_hostile_files_are_explained_simulated_and_validated_harmlessly(
    objects: list[JSON], tmp_path: Path, capsys: pytest.CaptureFixture[str], kubeconfig: str
) -> None:
    snapshot, manifests = tmp_path / "snapshot.json", tmp_path / "manifests.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    wanted = hostile([TEMPLATE, workload("Deployment", replicas=5)], everything=objects[0]["metadata"]["name"] != "gpu")
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))
    for argv in (["explain", "-f", str(snapshot)], ["validate", str(snapshot)], ["validate", str(manifests)]):
        run(capsys, *argv)
    run(capsys, "simulate", "-f", str(manifests), "--kubeconfig", kubeconfig, "--fill")


def test_an_archive_of_a_cluster_has_only_files_below_its_own_folder(
    objects: list[JSON], kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = next(o for o in objects if o["metadata"]["name"].startswith("plugin"))
    plugin["metadata"]["name"] += "p" * (
        253 - len(plugin["metadata"]["name"])
    )  # the longest name that the API server accepts
    plugin["metadata"]["namespace"] = "n" * 63
    for i, form in enumerate(("text", "json")):
        file = tmp_path / f"gathered-{i}.tar.gz"
        assert main(["gather", str(file), "--kubeconfig", kubeconfig, "--no-host", "-o", form]) == 0
        captured = capsys.readouterr()
        assert_clean(captured.out + captured.err, "dra gather")
        with tarfile.open(file) as archive:
            for member in archive.getmembers():
                assert_clean(member.name, "a name in the archive")
                parts = Path(member.name).parts
                assert member.isfile()
                assert parts[0] == f"gathered-{i}"
                assert ".." not in parts
                assert all(len(part.encode()) <= 255 for part in parts)
            assert any("/logs/" in name for name in archive.getnames())


@pytest.mark.parametrize("state", ["Prepared", "Preparing", "Hibernating"])
def test_records_with_hostile_names_and_errors_are_printed_harmlessly(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plugins" / DRIVER / "claims"
    path.mkdir(parents=True)
    devices = [{"request": HOSTILE, "pool": HOSTILE, "device": f"d{HOSTILE}"}]
    record = make_record("u1", "d-0", complete=True)
    record.devices = devices
    head, body = map(checked_text, encode_record(record, record.holds()).splitlines())
    lines = [
        msgspec.json.decode(head or b"") | {"state": state},
        msgspec.json.decode(body or b"") | {"error": HOSTILE},
    ]
    (path / file_name("u1")).write_bytes(b"".join(map(checked_line, lines)))
    named = msgspec.json.decode(head or b"") | {"uid": "u2", "namespace": HOSTILE, "name": HOSTILE}
    (path / file_name("u2")).write_bytes(checked_line(named) + checked_line(lines[1]))
    for name, value in (("KUBELET_ROOT", tmp_path), ("CDI_ROOT", tmp_path / "cdi"), ("DRIVER_NAME", DRIVER)):
        monkeypatch.setenv(name, str(value))
    run(capsys, "claims")
    assert main(["claims", "forget", "u1"]) == 1  # without a terminal, the command cannot ask for confirmation
    assert_clean(capsys.readouterr().err, "dra claims forget")


def test_a_hostile_name_in_an_argument_is_printed_harmlessly(
    kubeconfig: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", f"pod/{HOSTILE}", "--kubeconfig", kubeconfig]) == 2
    assert_clean(capsys.readouterr().err, "dra explain pod/HOSTILE")
    assert main(["explain", f"{HOSTILE}/x", "--kubeconfig", kubeconfig]) == 2
    assert_clean(capsys.readouterr().err, "dra explain HOSTILE/x")
