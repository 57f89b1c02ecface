"""The work on opaque parameters is bounded: one validation per distinct entry, and at most ten faults."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin import Claim, Config, Device
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.driver.claim import annotations_of
from dra_kubeletplugin.driver.config.model import MAX_FAULTS
from dra_kubeletplugin.driver.config.objects import ConfigReader, config_faults
from dra_kubeletplugin.driver.config.parameters import Parameters
from dra_kubeletplugin.driver.config.resolution import Resolver
from dra_kubeletplugin.driver.diagnostics.config_errors import MORE
from dra_kubeletplugin.driver.encoded_claim import EncodedClaim
from dra_kubeletplugin.errors import ConfigError, DraError
from dra_kubeletplugin.resourceapi.encoded import config_entries, from_json
from tests.helpers import worst_parameters
from tests.helpers.parameters import resolve
from tests.helpers.worst_parameters import DRIVER, KINDS, MACHINE, SHAPES, Plain

READER = ConfigReader(DRIVER, KINDS)
THREAD = 0.5  # CPU seconds in a thread for one claim


def entry(parameters: JSON, source: str = "FromClaim", requests: list[str] | None = None) -> JSON:
    return {"source": source, "requests": requests or [], "opaque": {"driver": DRIVER, "parameters": parameters}}


def head(kind: type[Config], **fields: Any) -> JSON:
    return {"apiVersion": kind.API_VERSION, "kind": kind.KIND, **fields}


@pytest.mark.cases(20)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_texts_are_validated_in_bounded_time_with_few_faults(kind: type[Config], shape: str) -> None:
    config = [{"source": "FromClaim", **e} for e in worst_parameters.entries(kind, shape)]
    encoded = config_entries(msgspec.Raw(json.dumps(config).encode()))
    began = time.thread_time()
    try:
        resolve(encoded, KINDS, DRIVER, "r")
    except ConfigError as e:
        assert 1 <= len(e.faults) <= MAX_FAULTS + 1
        assert sum(len(fault.encode()) for fault in e.faults) < 16 * 1024
        assert len(e.message.encode()) < 2048
    assert time.thread_time() - began < THREAD * MACHINE


def test_an_entry_for_many_requests_is_validated_once() -> None:
    checked = 0

    class Checked(Config):
        size: int = 0

        def check(self) -> None:
            nonlocal checked
            checked += 1

    parameters = Parameters([Checked], DRIVER)
    config = [entry({"size": 1}, "FromClass"), *(entry({"size": 2}, requests=[f"r{i}"]) for i in range(31))]
    found = [parameters.resolve(config, f"r{i}") for i in range(32)]
    assert [f"{c.size} {source}" for c, source in found if isinstance(c, Checked)] == ["2 FromClaim"] * 31 + [
        "1 FromClass"
    ]
    assert checked == 2, "two distinct entries"


@pytest.mark.cases(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_review_reports_ten_faults_and_that_the_search_stopped(shape: str) -> None:
    for kind in KINDS:
        found = config_faults(worst_parameters.claim(worst_parameters.entries(kind, shape)), [READER])
        assert len(found) <= MAX_FAULTS + 1
        assert (MORE in found) == (len(found) > MAX_FAULTS)
        assert all(len(fault.encode()) < 2048 for fault in found)


def test_after_ten_faults_another_request_is_not_accepted() -> None:
    wrong = entry(head(Plain, **{f"k{i}": 1 for i in range(20)}), requests=["a"])
    parameters = Parameters(KINDS, DRIVER)
    with pytest.raises(ConfigError, match=MORE):
        parameters.resolve([wrong, entry(head(Plain), requests=["b"])], "a")
    with pytest.raises(ConfigError, match=MORE):
        parameters.resolve([wrong, entry(head(Plain), requests=["b"])], "b")


async def test_small_parameters_are_resolved_on_the_event_loop_and_large_ones_in_a_thread() -> None:
    class StubDriver:
        config = KINDS

    driver: Any = StubDriver()
    resolver = Resolver(driver, DRIVER)
    for shape in SHAPES:
        with worst_parameters.event_loop_steps() as steps:
            for size in (worst_parameters.PARAMETERS, 2000):
                config = [{"source": "FromClaim", **e} for e in worst_parameters.entries(Plain, shape, 2, size)]
                encoded = config_entries(msgspec.Raw(json.dumps(config).encode()))
                steps.clear()
                found = await resolver.resolve(encoded, [("r", Device("d"))])
                assert isinstance(found[0], DraError | tuple)
        assert max(steps, default=0) < worst_parameters.LIMIT * MACHINE, shape


# --- JSON that Go reads and msgspec does not --------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        (rb'{"a":"x\ud800","b":1}', {"a": "x�", "b": 1}),
        (rb'{"\udc00":"\ud800A"}', {"�": "�A"}),
        (rb'{"a":"\ud83d\ude00 \ud800"}', {"a": "\U0001f600 �"}),
        (rb'{"a":"\\ud800","b":"\ud800"}', {"a": r"\ud800", "b": "�"}),
    ],
)
def test_an_object_with_half_of_a_surrogate_pair_can_be_read(encoded: bytes, decoded: Any) -> None:
    assert from_json(encoded) == decoded


@pytest.mark.parametrize("depth", [10, 500, 5_000, 100_000])
def test_an_object_of_any_depth_can_be_read(depth: int) -> None:
    found = from_json(b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b',"b":"][","c":{"d":[2]}}')
    assert (found["b"], found["c"]) == ("][", {"d": [2]})


@pytest.mark.parametrize("encoded", [b"", b'{"a":', b'{"a":"\\ud800"', b"[" * 100_000, b"]" * 5, b'{"a":1e999}'])
def test_invalid_json_is_rejected(encoded: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, RecursionError)):
        from_json(encoded)


def test_the_object_of_a_claim_is_decoded_at_its_first_use() -> None:
    body = json.dumps({"metadata": {"name": "c", "annotations": {"a": "b"}}, "spec": {"x": [1]}}).encode()
    encoded: Any = EncodedClaim(body)
    claim = Claim(namespace="ns", name="c", uid="u", devices=(), object=encoded)
    assert annotations_of(claim) == {"a": "b"}
    assert vars(claim)["object"] is encoded
    assert claim.object == {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **json.loads(body)}
    assert claim.object is claim.object
    assert annotations_of(claim) == {"a": "b"}
    assert Claim(namespace="ns", name="c", uid="u", devices=()).object == {}
