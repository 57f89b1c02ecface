from __future__ import annotations

import pytest

from examples.conftest import Example


@pytest.mark.dra(environment={"BINDING_CONDITIONS": "true"})
def test_the_pod_waits_until_the_controller_has_made_its_gpu_ready(example: Example) -> None:
    example.apply()
    example.api.wait_event("binding-conditions", "BindingConditionsPending")
    (gpu,) = example.node.allocated("binding-conditions")
    assert "nodeName" not in (example.api.get("Pod", "binding-conditions") or {})["spec"]
    with example.node.controller():
        assert example.gpus("binding-conditions") == [gpu]
