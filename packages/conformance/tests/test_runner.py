"""Runs: a correct driver passes, a bad command ends the run with a sentence and leaves no process."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest

from dra_conformance import CATALOGUE, api_server, runner, select_checks
from dra_conformance.catalogue import FUNCTIONS, DevicesMissing
from dra_conformance.driver_command import DriverCommand
from dra_kubeletplugin.errors import SettingsError
from tests.helpers.conformance import runs
from tests.helpers.conformance.runs import PLAIN, VARIANT, explained


def processes_with(mark: str) -> list[str]:
    """Returns the processes with a text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes() and int(path.name) != os.getpid():
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


async def test_a_correct_driver_passes_and_a_broken_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    selection = ["REG-001", "REG-003", "PRE-001", "PRE-011", "UNP-003", "CDI-002", "SLC-009", "RST-001"]
    good = await runs.run(PLAIN, selection)
    assert good.failed_ids == [], explained(good)
    assert len(good.outcomes) == len(selection)
    assert good.exit_code() == 0
    monkeypatch.setenv("BUG", "traceback in an error")
    bad = await runs.run(PLAIN, ["PRE-001", "PRE-011", "UNP-003"], xfail={"PRE-001": "expected"})
    assert bad.failed_ids == ["PRE-011"]
    assert any("NodePrepareResources" in e.summary for e in bad.outcomes[1].transcript)
    assert bad.exit_code() == 0
    assert bad.exit_code(strict=True) == 4


BAD_COMMANDS = {
    "exits": ("sh -c 'echo no hardware >&2; exit 3'", "ended with exit code 3"),
    "does not exist": ("/no/such/program", "cannot be started"),
    "hangs": ("sleep 1000", "no registration socket appeared"),
    "prints garbage": ("head -c 3000000 /dev/urandom", "ended with exit code 0"),
    "leaves children of another session": ("sh -c 'setsid sleep 1000 & sleep 1000'", "no registration socket appeared"),
    "prints without end": ("sh -c 'yes sleep'", "no registration socket appeared"),
    "leaves children": ("sh -c 'sleep 1000 & sleep 1000'", "no registration socket appeared"),
}


@pytest.mark.parametrize("name", BAD_COMMANDS)
async def test_a_bad_command_ends_with_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, sentence = BAD_COMMANDS[name]
    mark = f"CONFORMANCE_TEST={name}-{time.time_ns()}"
    monkeypatch.setenv(*mark.split("="))
    found = await runs.run(command, ready_timeout=1.0 if "sleep" in command else 60.0)
    assert sentence in found.fault
    assert found.exit_code() == 3
    assert found.outcomes == []
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("variant", "sentence"),
    [
        ("registration socket with a dot", "the kubelet ignores the socket .plain.example.com-"),
        ("GetInfo fails", "failed with INTERNAL: no configuration"),
        ("wrong endpoint", "no process listens at the endpoint 'dra.sock' of GetInfo 4 s after the registration"),
    ],
)
async def test_a_driver_without_a_socket_for_the_kubelet_ends_the_run(
    variant: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARIANT", variant)
    found = await runs.run(VARIANT, ready_timeout=4.0)
    assert sentence in found.fault
    assert found.exit_code() == 3
    assert found.outcomes == []


@pytest.mark.parametrize("variant", ["ends before it listens at the endpoint", "ends before it publishes"])
async def test_a_driver_that_ends_while_the_suite_waits_is_reported_with_its_exit_code(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARIANT", variant)
    found = await runs.run(VARIANT, ready_timeout=60.0)
    assert found.fault.startswith("the driver ended with exit code 7; its last output:\n")
    assert "no driver library on this machine" in found.fault
    assert (found.exit_code(), found.outcomes) == (3, [])
    assert found.seconds < 30


async def test_no_check_runs_for_a_driver_whose_requests_the_suite_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", "sends CBOR")
    found = await runs.run(VARIANT, ["SLC-001", "RST-005"], ready_timeout=4.0)
    refused = "POST /apis/resource.k8s.io/v1/resourceslices -> 415 the body of the request was in an unknown format"
    assert found.fault.startswith(f"the API server of the suite refused a request, so no check was run: {refused}")
    assert "publishing failed: HTTP Error 415" in found.fault
    assert (found.exit_code(), found.outcomes) == (3, [])


async def test_the_line_of_a_rejected_request_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", "invalid attribute")
    found = await runs.run(VARIANT, ["SLC-001"], ready_timeout=4.0)
    assert found.failed_ids == ["SLC-001"]
    assert any("-> 422" in e.summary and "Model Name" in e.summary for e in found.outcomes[0].transcript)
    assert "resourceslices -> 422 " in found.outcomes[0].got and "Model Name" in found.outcomes[0].got


async def test_a_driver_with_another_name_ends_the_run() -> None:
    found = await runs.run(PLAIN, ["REG-001"], name="other.example.com")
    assert found.fault == "the driver registered as 'plain.example.com', but the profile names 'other.example.com'"


@pytest.mark.full
async def test_a_driver_that_floods_the_api_server_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "_FLOOD", 300)  # a busy machine may not serve 3000 requests in 10 s
    program = (
        "import http.client, json, os, ssl\n"
        "config = json.load(open(os.environ['KUBECONFIG']))\n"
        "host = config['clusters'][0]['cluster']['server'].removeprefix('https://')\n"
        "client = http.client.HTTPSConnection(host, context=ssl._create_unverified_context())\n"
        "while True:\n"
        "    client.request('GET', '/api/v1/nodes')\n"
        "    client.getresponse().read()\n"
    )
    folder = Path(os.environ["HOME"])
    (folder / "flood.py").write_text(program)
    found = await runs.run(f"{sys.executable} {folder / 'flood.py'}", ready_timeout=60.0)
    assert "floods the API server" in found.fault
    assert found.exit_code() == 3


async def test_an_unexpected_exception_fails_its_check_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: object) -> None:
        raise FileNotFoundError("vanished")

    monkeypatch.setitem(FUNCTIONS, "PRE-001", broken)
    found = await runs.run(PLAIN, ["PRE-001", "PRE-002"])
    assert found.fault == ""
    assert found.failed_ids == ["PRE-001"]
    assert found.outcomes[0].got == "FileNotFoundError: vanished"


async def test_a_run_without_devices_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_devices(_: object) -> None:
        raise DevicesMissing("the driver publishes no usable device: none")

    monkeypatch.setitem(FUNCTIONS, "PRE-001", without_devices)
    found = await runs.run(PLAIN, ["REG-001", "PRE-001"], xfail={"REG-001": "issue 7"})
    assert [str(o.status) for o in found.outcomes] == ["passed", "skipped"]
    assert found.fault.startswith("the driver publishes no usable device: none; the last output of the driver:\n")
    assert found.exit_code() == 3
    assert found.outcomes[0].figures == (
        "profile: a failure is expected, but the check passed: delete it from [xfail]",
    )
    assert (await runs.run(PLAIN, ["PRE-001"], minimum=0)).exit_code() == 0


@pytest.mark.full
async def test_a_driver_that_publishes_anew_at_its_start_is_killed_at_random_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUG", "slices are created again at the start")
    found = await runs.run(PLAIN, ["RST-001", "RST-002"])
    assert [str(o.status) for o in found.outcomes] == ["passed", "passed"], explained(found)


async def test_a_driver_that_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", "hangs in prepare")
    monkeypatch.setattr(runner, "_LONG", 0.5)
    checks = ["PRE-001", "PRE-002", "PRE-006", "PRE-007"]
    for id in checks:
        monkeypatch.setitem(CATALOGUE, id, dataclasses.replace(CATALOGUE[id], limit=0.6))
    found = await runs.run(PLAIN, checks)
    assert found.failed_ids == checks[:3]
    assert "the driver hangs: PRE-001, PRE-002, PRE-006 failed" in found.fault
    assert found.exit_code() == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "is empty"),
        ("driver 'a", "cannot be split"),
        ("driver --kubeconfig $KUBECONFG", "uses the variable KUBECONFG, which is not set"),
        ("driver $", r"has a \$ without a name"),
    ],
)
def test_a_mistake_in_the_command_is_reported(command: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DriverCommand.parse(command).expanded({"KUBECONFIG": "/k"})


def test_variables_are_expanded() -> None:
    command = DriverCommand.parse("driver --kubeconfig=$KUBECONFIG --root '${KUBELET_ROOT}/plugins' $$")
    env = {"KUBECONFIG": "/k", "KUBELET_ROOT": "/r"}
    assert command.program(env) == ["driver", "--kubeconfig=/k", "--root", "/r/plugins", "$"]


def test_checks_are_selected_by_id_and_group() -> None:
    assert [c.id for c in select_checks(["unp", "REG-002"])] == ["REG-002", "UNP-001", "UNP-002", "UNP-003"]
    with pytest.raises(SettingsError, match="there is no check SLC-099"):
        select_checks(["SLC-099"])
