"""`dra deploy` replaces all files of its earlier run, and never changes other files."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.packaging.manifests.values import with_defaults
from dra_devkit.packaging.manifests.writer import driver_files, shared_files, write_files
from dra_kubeletplugin.errors import SettingsError
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.rendering import SOURCE

CLASS = {"x": {"selectors": [{"cel": {"expression": "device.driver == 'x.example.com'"}}]}}
GIVEN = {"name": "x", "namespace": "x", "driverName": "x.example.com", "image": "x:1"}
VALUES = with_defaults(SOURCE, {**GIVEN, "deviceClasses": CLASS})


@functools.cache
def rendered(which: str) -> Mapping[str, str]:
    """Returns the files, which are rendered once because rendering is slow."""
    return driver_files(SOURCE, VALUES) if which == "driver" else shared_files(SOURCE)


WRITERS: dict[str, Callable[[Path], None]] = {
    "driver": lambda folder: write_files(folder, rendered("driver")),
    "shared": lambda folder: write_files(folder, rendered("shared")),
}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("writer", "place"),
    [
        ("driver", "kustomization.yaml"),
        ("driver", "deviceclass.yaml"),
        ("driver", "kustomize/mine.yaml"),
        ("driver", "kustomize/base/.hidden"),
        ("shared", "helm/mine/Chart.yaml"),
        ("shared", "monitoring/mine.yaml"),
        ("shared", "kustomize/components/mine/kustomization.yaml"),
    ],
)
@pytest.mark.parametrize("linked", [False, True], ids=["a file", "a link"])
def test_dra_deploy_never_overwrites_files_of_others(tmp_path: Path, writer: str, place: str, linked: bool) -> None:
    folder = tmp_path / "deploy"
    for again in (False, True):  # also among files of an earlier run
        if again:
            WRITERS[writer](folder)
        own_file = folder / place
        own_file.unlink(missing_ok=True)
        own_file.parent.mkdir(parents=True, exist_ok=True)
        if linked:
            (tmp_path / "own").write_text("my: own\n")
            own_file.symlink_to(tmp_path / "own")
        else:
            own_file.write_text("my: own\n")
        before = tree(folder)
        with pytest.raises(SettingsError, match=rf"{place} was not written by `dra deploy`"):
            WRITERS[writer](folder)
        assert tree(folder) == before
        own_file.unlink()


def test_the_command_reports_files_that_it_would_overwrite(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "helm").mkdir()
    (tmp_path / "helm/mine").write_text("x")
    assert (
        f"{tmp_path}/helm/mine was not written by `dra deploy` and would be overwritten"
        in dra("deploy", "--shared-dir", tmp_path, code=2).err
    )


def test_a_run_after_a_failure_at_any_step_writes_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS["driver"](tmp_path / "whole")
    calls_until_failure = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            nonlocal calls_until_failure
            calls_until_failure -= 1
            if calls_until_failure == 0:
                raise OSError(28, "No space left on device")
            return real(*args, **options)

        return step

    for name in ("write_text", "replace", "unlink"):
        monkeypatch.setattr(Path, name, failing(getattr(Path, name)))
    steps = 0
    while steps == 0 or calls_until_failure <= 0:
        steps += 1
        folder = tmp_path / str(steps)
        (folder / "kustomize/base").mkdir(parents=True)
        (folder / "kustomize/base/obsolete.yaml").write_text("# Made by `dra deploy`\n")
        calls_until_failure = steps
        with contextlib.suppress(OSError):
            WRITERS["driver"](folder)
        finished = calls_until_failure > 0
        calls_until_failure = -1
        WRITERS["driver"](folder)
        assert tree(folder) == tree(tmp_path / "whole"), f"step {steps}"
        if finished:
            break
    assert steps > 2 * len(tree(tmp_path / "whole"))


def test_concurrent_runs_write_the_files_of_one_run(tmp_path: Path) -> None:
    WRITERS["driver"](tmp_path / "one")
    faults = []

    def write() -> None:
        try:
            for _ in range(3):
                WRITERS["driver"](tmp_path / "many")
        except Exception as e:
            faults.append(e)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert tree(tmp_path / "many") == tree(tmp_path / "one")


def test_dra_deploy_deletes_the_files_of_removed_classes(tmp_path: Path) -> None:
    WRITERS["driver"](tmp_path)
    write_files(tmp_path, driver_files(SOURCE, with_defaults(SOURCE, GIVEN)))
    assert not (tmp_path / "deviceclass.yaml").exists()
