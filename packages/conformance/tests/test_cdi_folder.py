"""The CDI folder: why a CDI id does not resolve."""

from __future__ import annotations

import json
from pathlib import Path

from dra_conformance.cdi_folder import CdiFolder


def write(folder: Path, name: str, version: str) -> None:
    spec = {"cdiVersion": version, "kind": "a.com/b", "devices": [{"name": name, "containerEdits": {"env": ["A=1"]}}]}
    (folder / "a.json").write_text(json.dumps(spec))


def test_an_unresolvable_id_is_explained(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    assert folder.unresolvable(["a.com/b=1"]) == f"unresolvable: a.com/b=1; no spec in CDI_ROOT ({tmp_path})"
    write(tmp_path, "x", "0.3.0")
    assert folder.unresolvable(["a.com/b=x"]) == ""
    assert folder.unresolvable(["a.com/b=1"]).endswith(f"CDI_ROOT ({tmp_path}) has only a.com/b=x")
    write(tmp_path, "1", "0.3.0")
    assert "a.json: failed to load CDI Spec" in folder.unresolvable(["a.com/b=1"])
