"""Manifests of a driver from its values: kustomize components and a Helm chart, both rendered from ``source/``."""
