"""Manifests as text, whose lines and columns a test knows."""

from __future__ import annotations

CLAIM = """apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
    - name: r
      exactly:
        deviceClassName: gpu.example.com
        count: 1
"""
