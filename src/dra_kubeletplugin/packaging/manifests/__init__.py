"""Renders the manifests of a driver from its values: kustomize components and a Helm chart, both from ``source/``."""
