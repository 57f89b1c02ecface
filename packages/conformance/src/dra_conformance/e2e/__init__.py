"""Tests of a deployed driver on a real cluster, for pytest. They know Kubernetes' API and kubectl, and nothing of this project's cluster.

Run them in a driver's folder: ``python -m pytest -p dra_conformance.e2e.options --pyargs dra_conformance.e2e.steps``.
"""
