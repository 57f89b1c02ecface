"""CFG: opaque parameters. The profile names parameters that the driver accepts or rejects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..catalogue import CheckNotApplicable, CheckSkipped, expect, may
from ..harness import Harness, expect_prepared
from ..kubelet_client import CallResponse
from .prepare import refusal

_SOURCE = "KEP-4381: opaque parameters; status.allocation.devices.config"


def chosen(h: Harness, kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = getattr(h.profile, kind)
    if found is None:
        why = f"the profile has no [config] {kind}; for a driver without such parameters, write {kind} = []"
        raise CheckSkipped(why)
    if not found:
        raise CheckNotApplicable(f"profile: [config] {kind} = []")
    return found


def entry(driver: str, source: str, parameters: Any) -> dict[str, Any]:
    """Returns an entry of an allocation's parameters. ``source`` is FromClass or FromClaim."""
    return {"source": source, "opaque": {"driver": driver, "parameters": parameters}}


async def prepare_with(h: Harness, *entries: dict[str, Any]) -> tuple[dict[str, Any], CallResponse]:
    """Prepares a claim whose allocation has these parameters."""
    spec, status = await h.free_claim()
    status["allocation"]["devices"]["config"] = list(entries)
    claim = h.put_claim(spec, status)
    return claim, await h.plugin.prepare(claim)


@may(
    "CFG-001",
    "accepts the valid parameters of the profile",
    consequence="documented parameters do not work",
    source=_SOURCE,
)
async def valid(h: Harness) -> None:
    """Prepares and unprepares a claim with each of the valid parameters."""
    for name, parameters in chosen(h, "valid").items():
        claim, found = await prepare_with(h, entry(h.name, "FromClaim", parameters))
        error = found.of(claim).error
        expect(not error, f"{name} is accepted", error)
        await h.unprepared(claim)
        h.release(claim)


@may(
    "CFG-002",
    "rejects the invalid parameters of the profile with an error for the claim",
    consequence="a mistake of a user has no effect and no message",
    source=_SOURCE,
)
async def invalid(h: Harness) -> None:
    """Prepares a claim with each of the invalid parameters, and looks for the text of [config] errors."""
    for name, parameters in chosen(h, "invalid").items():
        claim, found = await prepare_with(h, entry(h.name, "FromClaim", parameters))
        error = refusal(found, claim, name)
        if text := h.profile.errors.get(name):
            expect(text in error, f"an error for {name} that contains {text!r}", error)
        h.release(claim)


@may(
    "CFG-003",
    "rejects parameters with an unknown field, and names the field",
    consequence="a misspelt parameter has no effect and no message",
    source=_SOURCE,
)
async def unknown_field(h: Harness) -> None:
    """Adds the field noSuchField to valid parameters, prepares a claim with them, and reads the error."""
    name, parameters = next(iter(chosen(h, "valid").items()))
    claim, found = await prepare_with(h, entry(h.name, "FromClaim", {**parameters, "noSuchField": 1}))
    error = refusal(found, claim, f"{name} with the field noSuchField")
    expect("noSuchField" in error, "an error that contains 'noSuchField', the field that the suite added", error)


@may(
    "CFG-004",
    "reads parameters of the claim beside those of the class, and ignores those of other drivers",
    consequence="a user cannot change the defaults of a class, or a claim with devices of two drivers fails",
    source=f"{_SOURCE}: entries of the class come first, then entries of the claim",
)
async def precedence(h: Harness) -> None:
    """Prepares a claim with valid parameters of class and claim. Then prepares claims whose own parameters are invalid."""
    valid_one = next(iter(chosen(h, "valid").values()))
    of_class, of_claim = (entry(h.name, source, valid_one) for source in ("FromClass", "FromClaim"))
    other = entry("other.example.com", "FromClass", {"kind": "Unknown"})
    claim, found = await prepare_with(h, other, of_class, of_claim)
    expect_prepared(claim, found)
    await h.unprepared(claim)
    h.release(claim)
    if not h.profile.invalid:
        h.facts["figures"].append("no precedence was tested: add parameters to [config] invalid in the profile")
    for name, parameters in (h.profile.invalid or {}).items():
        claim, found = await prepare_with(h, of_class, entry(h.name, "FromClaim", parameters))
        refusal(found, claim, f"{name} in the claim, although the parameters of the class are valid")
        h.release(claim)
