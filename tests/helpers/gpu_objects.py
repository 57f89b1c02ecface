"""A device class and a claim template of the GPU example, and pods that use them."""

from __future__ import annotations

from typing import Any

CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
}
TEMPLATE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}},
}


def pod(name: str, script: str, *, restart: str = "Never", image: str = "busybox", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": ["sh", "-c", script]}
    container["resources"] = {"claims": [{"name": "gpu"}]}  # type: ignore[assignment]
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    defaults = {
        "restartPolicy": restart,
        "containers": [container],
        "resourceClaims": claims,
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": defaults | spec}
