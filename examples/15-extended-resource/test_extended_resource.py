from __future__ import annotations

from examples.conftest import Example


def test_a_pod_without_claims_has_the_gpus_of_its_limits(example: Example) -> None:
    example.apply()
    gpus = example.gpus("extended-resource")
    assert len(gpus) == 2
    (claim,) = example.api.get_all("ResourceClaim")
    assert claim["metadata"]["name"].startswith("extended-resource-extended-resources-")
    assert sorted(r["device"] for r in claim["status"]["allocation"]["devices"]["results"]) == gpus
