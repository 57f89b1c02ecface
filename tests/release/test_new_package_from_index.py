"""The workflow of a vendor: install from an index, create a package, pin its dependencies, and build its image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.release import images, index
from tests.release.installation import PROJECTS, Environment, built, run


@pytest.mark.image
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("base")
def test_the_image_of_a_new_package_contains_the_locked_packages_of_the_index(dist: Path, tmp_path: Path) -> None:
    digests = {name: index.fill(tmp_path / "index", built(dist, name)) for name in PROJECTS}
    with index.served(tmp_path / "index") as url:
        tools = Environment.make(tmp_path / "tools")
        tools.install_from_index("dra-devkit", url)
        run(tools.path("dra"), "new", "acme-fpga", "--kind", "sdk", cwd=tmp_path)
        package = tmp_path / "acme-fpga"
        run("make", "lock", cwd=package, UV_INDEX=url)
        (config := tmp_path / "pip.conf").write_text(f"[global]\nextra-index-url = {url}\n")
        build_options = " ".join((*images.BUILD, "--volume", f"{config}:/etc/pip.conf:ro"))
        image = images.tag("acme-fpga")
        run("make", "image", "ENGINE=podman", f"IMAGE={image}", f"ARGS={build_options}", cwd=package, timeout=500)
    try:
        pinned = (package / "image/requirements.txt").read_text()
        assert [name for name, digest in digests.items() if f"--hash=sha256:{digest}" in pinned] == [
            "dra-kubeletplugin"
        ]
        assert images.inside(image, "dra", "--version").startswith("dra ")
        assert "ACME_FPGA_RESERVED" in images.inside(image, "dra", "run", "acme_fpga.driver", "--help")
        with images.mounted(image) as root:
            listed = json.loads((root / "usr/share/sbom/image.cdx.json").read_text())
        assert {"acme-fpga", "dra-kubeletplugin", "cpython", "libc6"} <= {c["name"] for c in listed["components"]}
    finally:
        images.remove(image)


@pytest.mark.image
def test_a_wheel_with_another_hash_than_the_lock_file_is_rejected(dist: Path, tmp_path: Path) -> None:
    wheel = built(dist, "dra-kubeletplugin")
    version = wheel.name.split("-")[1]
    (lock := tmp_path / "requirements.txt").write_text(f"dra-kubeletplugin=={version} --hash=sha256:{'0' * 64}\n")
    index.fill(tmp_path / "index", wheel)
    with index.served(tmp_path / "index") as url, pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
        Environment.make(tmp_path / "environment").install_from_index(f"--require-hashes -r {lock}", url)
