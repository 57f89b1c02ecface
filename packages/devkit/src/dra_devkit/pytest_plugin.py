"""pytest's entry point for the fixtures ``local_cluster``, ``node``, ``kubelet`` and ``api`` of :mod:`dra_devkit.testing`."""

from .testing.fixtures import (
    _dra_server,
    _dra_thread,
    api,
    kubelet,
    local_cluster,
    node,
    pytest_addoption,
    pytest_configure,
    pytest_runtest_makereport,
)

__all__ = [
    "_dra_server",
    "_dra_thread",
    "api",
    "kubelet",
    "local_cluster",
    "node",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_makereport",
]
