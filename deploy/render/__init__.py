"""Renders the manifests of a driver: kustomize components and a Helm chart, both from ``deploy/source``."""
