"""The workflows of a new package: each step that can run here passes in a clean clone, as the guide describes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.release.installation import PROJECTS, Environment, built, run
from tests.release.test_new_package import create_package


def steps(package: Path, workflow: str, job: str) -> dict[str, str]:
    """Returns the commands of a job by the name of their step."""
    found: Any = yaml.safe_load((package / f".github/workflows/{workflow}.yaml").read_text())
    return {s.get("name", s["run"]): s["run"] for s in found["jobs"][job]["steps"] if "run" in s}


@pytest.mark.index
@pytest.mark.timeout(600)
def test_a_clean_clone_with_committed_wheels_passes_its_tests_without_an_index_that_has_them(
    dist: Path, tmp_path: Path
) -> None:
    package = create_package(tmp_path / "author", "acme-fpga", "chardev")
    (package / "wheels").mkdir()
    for name in PROJECTS:
        shutil.copy(built(dist, name), package / "wheels")
    git = ("git", "-c", "user.name=author", "-c", "user.email=author@example.com")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "A driver")):
        run(*git, *command, cwd=package)
    run("git", "clone", "-q", str(package), "clone", cwd=tmp_path)
    clone = tmp_path / "clone"
    for command in steps(clone, "ci", "test").values():
        run("bash", "-euc", command, cwd=clone)
    assert run("git", "status", "--short", cwd=clone) == ""


@pytest.mark.helm
def test_the_release_workflow_packages_the_chart_with_the_pushed_image(installed: Environment, tmp_path: Path) -> None:
    package = create_package(tmp_path / "author", "acme-fpga", "chardev")
    installed.install(package)
    (package / ".venv").symlink_to(installed.folder)
    (package / ".venv/.installed").touch()
    commands = steps(package, "release", "release")
    env = package / "environment"
    tag = {
        "GITHUB_REF_TYPE": "tag",
        "GITHUB_REF_NAME": "v1.2.0",
        "GITHUB_REPOSITORY_OWNER": "Acme",
        "GITHUB_ENV": str(env),
    }
    run("bash", "-euc", commands["names"], cwd=package, **tag)
    names = dict(line.split("=", 1) for line in env.read_text().splitlines())
    assert names == {"VERSION": "1.2.0", "IMAGE": "ghcr.io/acme/acme-fpga", "CHARTS": "ghcr.io/acme/charts"}
    reference = f"{names['IMAGE']}:1.2.0@sha256:{'0' * 64}"
    run("bash", "-euc", commands["chart"], cwd=package, **names, REFERENCE=reference)
    rendered = run("helm", "template", "any", "build/acme-fpga-1.2.0.tgz", cwd=package)
    assert f'image: "{reference}"' in rendered or f"image: {reference}" in rendered


def test_the_release_workflow_publishes_only_a_tag(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    text = (package / ".github/workflows/release.yaml").read_text()
    found: Any = yaml.safe_load(text)
    publishing = ("docker push", "helm push", "docker login", "registry login", "attest")
    for step in found["jobs"]["release"]["steps"]:
        if any(word in step.get("run", "") + step.get("uses", "") for word in publishing):
            assert step.get("if") == "github.ref_type == 'tag'", step
