"""The workflows of a new package: each step that can run here passes in a clean clone, as the guide describes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.release.installation import PROJECTS, Environment, built, clean_environment, create_package, run


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
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REF_NAME": "v0.1.0",
        "GITHUB_RUN_NUMBER": "7",
        "GITHUB_REPOSITORY_OWNER": "Acme",
        "GITHUB_ENV": str(env),
    }
    run("bash", "-euc", commands["names"], cwd=package, **tag)
    names = dict(line.split("=", 1) for line in env.read_text().splitlines())
    assert names == {"VERSION": "0.1.0", "IMAGE": "ghcr.io/acme/acme-fpga", "CHARTS": "ghcr.io/acme/charts"}
    reference = f"{names['IMAGE']}:0.1.0@sha256:{'0' * 64}"
    run("bash", "-euc", commands["chart"], cwd=package, **names, REFERENCE=reference)
    rendered = run("helm", "template", "any", "build/acme-fpga-0.1.0.tgz", cwd=package)
    assert f'image: "{reference}"' in rendered or f"image: {reference}" in rendered


def test_the_release_workflow_publishes_only_a_pushed_tag(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    text = (package / ".github/workflows/release.yaml").read_text()
    found: Any = yaml.safe_load(text)
    publishing = ("docker push", "helm push", "docker login", "registry login", "attest")
    for step in found["jobs"]["release"]["steps"]:
        if any(word in step.get("run", "") + step.get("uses", "") for word in publishing):
            assert step.get("if") == "github.event_name == 'push'", step


def run_step(package: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a step as GitHub does with `shell: bash`, without the expressions."""
    argv = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", re.sub(r"\$\{\{.*?\}\}", "x", command))
    return subprocess.run(
        argv, check=False, cwd=package, env=clean_environment() | environment, text=True, capture_output=True
    )


def replace_command(folder: Path, name: str, script: str) -> str:
    """Writes a command, and returns the PATH on which it comes first."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_chart_that_the_registry_refuses_fails_the_release(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    path = replace_command(
        tmp_path / "bin",
        "helm",
        '[ "$1" != push ] || { echo "denied" >&2; exit 1; }; [ "$1" != registry ] || cat >/dev/null',
    )
    workflow: Any = yaml.safe_load((package / ".github/workflows/release.yaml").read_text())
    assert workflow["jobs"]["release"]["defaults"] == {"run": {"shell": "bash"}}
    command = steps(package, "release", "release")["push the chart"]
    result = run_step(package, command, PATH=path, VERSION="0.1.0", CHARTS="ghcr.io/acme/charts", GITHUB_OUTPUT="out")
    assert result.returncode != 0
    assert "denied" in result.stdout


@pytest.mark.parametrize(
    ("event", "ref", "code", "version"),
    [("push", "v0.1.0", 0, "0.1.0"), ("push", "v0.2.0", 1, ""), ("workflow_dispatch", "v0.2.0", 0, "0.0.0-dev.7")],
)
def test_a_tag_is_released_only_with_the_version_of_the_package(
    tmp_path: Path, event: str, ref: str, code: int, version: str
) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    github = {"GITHUB_EVENT_NAME": event, "GITHUB_REF_NAME": ref, "GITHUB_RUN_NUMBER": "7", "GITHUB_ENV": "env"}
    command = steps(package, "release", "release")["names"]
    result = run_step(package, command, GITHUB_REPOSITORY_OWNER="Acme", **github)
    assert result.returncode == code, result
    if code:
        assert result.stdout == "::error::the tag is v0.2.0: pyproject.toml has another version\n"
    else:
        assert f"VERSION={version}\n" in (package / "env").read_text()


def test_pins_that_are_not_committed_fail_the_workflow(tmp_path: Path) -> None:
    package = create_package(tmp_path, "acme-fpga", "chardev")
    path = replace_command(tmp_path / "bin", "make", "echo 'grpcio==1.0' > image/requirements.txt")
    (check,) = (c for c in steps(package, "ci", "image").values() if "make lock" in c)
    git = ("git", "-c", "user.name=author", "-c", "user.email=author@example.com")
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "A driver")):
        run(*git, *command, cwd=package)
    assert run_step(package, check, PATH=path).returncode != 0
    run(*git, "add", "-A", cwd=package)
    run(*git, "commit", "-q", "-m", "Pins", cwd=package)
    result = run_step(package, check, PATH=path)
    assert result.returncode == 0, result
