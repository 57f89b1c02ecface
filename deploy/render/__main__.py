"""``python -m deploy.render`` renders what is committed; with ``FOLDER`` one driver's folder, from its ``values.yaml``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tomllib
from pathlib import Path

import yaml

from . import driver, helm, kustomize
from .source import JSON, Source, SourceError, load
from .values import merged, read

ROOT = Path(__file__).parents[2]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.render", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="a driver's folder with values.yaml; all that is committed if left out"
    )
    parser.add_argument(
        "-f", "--values", action="append", default=[], type=Path, help="values on top, as Helm takes them"
    )
    parser.add_argument("-o", "--out", type=Path, help="write here instead of FOLDER")
    parser.add_argument("--base", default="", help="where deploy/kustomize is: a path from there, or a URL with ?ref=")
    args = parser.parse_args(argv)
    try:
        source = load()
        if args.folder:
            render_driver(source, args.folder, args.values, args.out, args.base)
        else:
            render_all(source, args.out or ROOT)
    except (SourceError, OSError, yaml.YAMLError) as e:
        print(f"not rendered: {e}", file=sys.stderr)
        return 2
    return 0


def render_all(source: Source, root: Path) -> None:
    """Everything that is committed, below ``root``."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    rendered = {"kustomize": dict(kustomize.files(source)), "helm": dict(helm.files(source, version))}
    for form, files in rendered.items():
        shutil.rmtree(root / "deploy" / form, ignore_errors=True)
        for path, text in files.items():
            _write(root / "deploy" / form / path, text)
    for folder in sorted(p.parent for p in ROOT.glob("drivers/*/deploy/values.yaml")):
        render_driver(source, folder, [], root / folder.relative_to(ROOT), "../../../deploy/kustomize")


def render_driver(source: Source, folder: Path, above: list[Path], out: Path | None, base: str) -> None:
    """Raises :class:`SourceError` for values that are wrong."""
    given: JSON = {}
    for path in (folder / "values.yaml", *above):
        read_in = yaml.safe_load(path.read_text()) or {}
        if not isinstance(read_in, dict):
            raise SourceError(f"{path} is no map of values")
        given = merged(given, read_in)
    out = out or folder
    base = base or os.path.relpath(ROOT / "deploy/kustomize", out)
    try:
        values = read(source, given)
    except SourceError as e:
        raise SourceError(f"{folder / 'values.yaml'}: {e}") from None
    for name, text in driver.files(source, values, base):
        _write(out / name, text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
