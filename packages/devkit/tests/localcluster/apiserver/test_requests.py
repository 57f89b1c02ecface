"""Paths that the local API server does not serve."""

from __future__ import annotations

import pytest

from dra_devkit.kubernetes_releases import RELEASES, Features
from dra_devkit.localcluster.apiserver import ApiServer
from dra_kubeletplugin.kube import KubeClient
from dra_kubeletplugin.kube.errors import NotFoundError

BARE = "404 the server could not find the requested resource"


@pytest.mark.parametrize("release", RELEASES)
async def test_a_subresource_of_pods_that_the_local_cluster_lacks_is_named_and_an_unknown_one_is_not(
    release: str,
) -> None:
    server = ApiServer(features=Features.of(release))
    await server.start()
    try:
        async with KubeClient(server.config) as client:
            for sub, more in (
                ("resize", ": the local cluster does not have pods/resize"),
                ("ephemeralcontainers", ": the local cluster does not have pods/ephemeralcontainers"),
                ("resized", ""),
            ):
                with pytest.raises(NotFoundError) as error:
                    await client.call("PATCH", f"/api/v1/namespaces/default/pods/p/{sub}", {"spec": {}})
                assert str(error.value).endswith(BARE + more)
    finally:
        await server.close()
