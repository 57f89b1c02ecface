"""No check fails a behavior that a kubelet accepts, and no check passes a driver that breaks the check's text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_conformance.catalogue import CheckFailed
from dra_conformance.checks.prepare import refusal
from dra_conformance.kubelet_client import CallResponse, ClaimResponse, DeviceResponse, call_result
from tests.helpers.conformance import runs, variants
from tests.helpers.conformance.runs import PLAIN, VARIANT, explained

pytestmark = pytest.mark.timeout(300)
CLAIM = {"metadata": {"uid": "u"}}


@pytest.mark.full
@pytest.mark.parametrize("variant", variants.ACCEPTED)
async def test_a_behavior_that_a_kubelet_accepts_passes(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", variant)
    found = await runs.run(VARIANT, variants.ACCEPTED[variant])
    assert found.fault == ""
    assert len(found.outcomes) == len(variants.ACCEPTED[variant])
    assert found.failed_ids == [], explained(found)


@pytest.mark.full
@pytest.mark.parametrize("variant", variants.BROKEN)
async def test_a_driver_that_breaks_the_text_of_a_check_fails(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARIANT", variant)
    found = await runs.run(VARIANT, variants.BROKEN[variant])
    assert found.fault == ""
    assert set(found.failed_ids) == set(variants.BROKEN[variant]), explained(found)


async def test_a_cdi_id_of_a_static_spec_of_the_machine_resolves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [{"name": f"gpu-{i}", "containerEdits": {"env": ["GPU=1"]}} for i in range(4)]
    spec = {"cdiVersion": "0.5.0", "kind": "static.example.com/gpu", "devices": devices}
    static = tmp_path / "etc/cdi"
    static.mkdir(parents=True)
    (static / "static.json").write_text(json.dumps(spec))
    (static / "broken.json").write_text("no fault of the driver")
    monkeypatch.setenv("HOST_ROOT", str(tmp_path))
    monkeypatch.setenv("VARIANT", "CDI ids of the machine")
    found = await runs.run(VARIANT, ["CDI-001", "CDI-002", "CDI-004"])
    assert found.failed_ids == [], explained(found)
    (static / "static.json").unlink()
    assert (await runs.run(VARIANT, ["CDI-001"])).failed_ids == ["CDI-001"]


async def test_a_driver_without_parameters_skips_no_check() -> None:
    checks = ["CFG-001", "CFG-002", "CFG-003", "CFG-004"]
    found = await runs.run(PLAIN, checks, valid={}, invalid={}, errors={})
    assert {str(o.status) for o in found.outcomes} == {"not applicable"}
    assert found.exit_code(fail_on_skip=True) == 0
    unknown = await runs.run(PLAIN, checks, valid=None, invalid=None, errors={})
    assert {str(o.status) for o in unknown.outcomes} == {"skipped"}


async def test_an_unknown_field_that_is_not_named_is_in_the_failure() -> None:
    found = await runs.run(PLAIN, ["CFG-003"], valid={"ok.json": {"apiVersion": "a", "kind": "PlainConfig"}})
    assert found.failed_ids == ["CFG-003"]
    assert "noSuchField" in found.outcomes[0].expected, "the author did not write this field"


def test_the_result_of_a_call_names_the_claim_and_its_error() -> None:
    claims = [{"metadata": {"uid": uid, "name": f"claim-{uid}"}} for uid in ("a", "b", "c")]
    fine = {uid: ClaimResponse("") for uid in ("a", "b", "c")}
    assert call_result(CallResponse("", fine), claims) == "ok"
    broken = {**fine, "b": ClaimResponse("two\nlines " + "x" * 200)}
    text = call_result(CallResponse("", broken), claims)
    assert text.startswith("error for claim-b: two lines xxx")
    assert text.endswith("...")
    assert len(text) < 150
    del fine["c"]
    assert call_result(CallResponse("", fine), claims) == "error for claim-c: the response has no entry for the claim"


def test_a_refused_claim_needs_an_entry_with_an_error() -> None:
    assert refusal(CallResponse("", {"u": ClaimResponse("unknown device")}), CLAIM, "it") == "unknown device"
    assert refusal(CallResponse("gRPC error", {}), CLAIM, "it") == "gRPC error"  # as drivers in Go return
    with pytest.raises(CheckFailed, match="without an entry"):
        refusal(CallResponse("", {}), CLAIM, "it")
    with pytest.raises(CheckFailed, match="got success"):
        refusal(CallResponse("", {"u": ClaimResponse("")}), CLAIM, "it")


def test_the_order_in_a_response_does_not_matter() -> None:
    a = ClaimResponse("", (DeviceResponse(("x", "y"), "p", "d1", ("i", "j")), DeviceResponse((), "p", "d0", ())))
    b = ClaimResponse("", (DeviceResponse((), "p", "d0", ()), DeviceResponse(("y", "x"), "p", "d1", ("j", "i"))))
    assert a.content == b.content
    assert a.content != ClaimResponse("", (DeviceResponse((), "p", "d0", ()),)).content
