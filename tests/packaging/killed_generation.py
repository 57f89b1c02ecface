"""Kills `dra new` or `dra deploy` before each of its steps in the file system, and runs it again each time: run by test_killed_generation.

``python -m tests.packaging.killed_generation FOLDER ARGUMENTS...`` prints, after each second run, what is in the folder; then ``end``.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dra_kubeletplugin.cli import deploy as cli_deploy
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.packaging.manifests import driver, kustomize
from dra_kubeletplugin.packaging.scaffold import writer

_STEPS = frozenset(
    {
        "open",
        "os.mkdir",
        "os.rename",
        "os.remove",
        "os.rmdir",
        "os.listdir",
        "os.scandir",
        "shutil.rmtree",
        "fcntl.flock",
    }
)


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a process that does ``work``."""
    child = os.fork()
    if not child:
        code = 70
        try:
            found = work()
            code = found if isinstance(found, int) else 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_at(step: int, folder: Path, arguments: list[str]) -> int:
    left = step

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in _STEPS or not (str(folder) in str(given[0]) or event == "fcntl.flock"):
            return
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    sys.addaudithook(hook)
    return main(arguments)


def once(owner: Any, name: str) -> None:
    """What a function answers the first time, for ever: rendering takes a second, and a run is made a hundred times."""
    work, found = getattr(owner, name), list[Any]()

    def answer(*args: Any) -> Any:
        if not found:
            made = work(*args)
            found.append(list(made) if isinstance(made, Iterator) else made)
        return found[0]

    setattr(owner, name, answer)


def list_files(folder: Path) -> str:
    return " ".join(sorted(str(p.relative_to(folder)) for p in folder.rglob("*")))


def sweep(folder: Path, arguments: list[str]) -> None:
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    main(arguments)  # all is imported
    step, done = 0, 1
    while done:
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        done = in_child(functools.partial(kill_at, step, folder, arguments))
        if done == -signal.SIGKILL:
            again = in_child(functools.partial(main, arguments))
            print(f"step {step} {again} {list_files(folder)}", flush=True)
        elif done:
            raise RuntimeError(f"step {step}: {done}")
        step += 1
    print("end", flush=True)


if __name__ == "__main__":
    for owner, name in ((kustomize, "files"), (driver, "files"), (cli_deploy, "values_of"), (writer, "values_of")):
        once(owner, name)
    sweep(Path(sys.argv[1]), sys.argv[2:])
