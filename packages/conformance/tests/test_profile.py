"""Profiles: a mistake is reported with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_conformance import CATALOGUE, read_profile
from dra_kubeletplugin.errors import SettingsError


def written(folder: Path, text: str) -> Path:
    path = folder / "conformance.toml"
    path.write_text(text)
    return path


def test_a_profile_is_read(tmp_path: Path) -> None:
    (tmp_path / "ok.yaml").write_text("kind: Ok")
    text = """
[driver]
name = "gpu.example.com"
ready_timeout = "1500ms"
api_versions = ["v1", "v1beta1"]
[devices]
minimum = 2
exclusive = false
[config]
valid = ["ok.yaml"]
[hooks]
is_configured = "./check.sh {device}"
[limits]
idle = "1m"
kills = 3
[skip]
"CDI-007" = "no device nodes"
[xfail]
"UPG-002" = "issue 7"
"""
    found = read_profile(written(tmp_path, text), list(CATALOGUE))
    assert (found.name, found.ready_timeout, found.minimum, found.exclusive) == ("gpu.example.com", 1.5, 2, False)
    assert (found.limits.idle, found.limits.kills, found.limits.cycles) == (60.0, 3, 1000)
    assert found.valid == {"ok.yaml": {"kind": "Ok"}}
    assert found.skip == {"CDI-007": "no device nodes"}
    assert found.xfail == {"UPG-002": "issue 7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[driver", "Expected '\\]' at the end of a table declaration"),
        ("[drivers]\nname='a'", "unknown field `drivers`"),
        ("[driver]\nnmae='a'", "unknown field `nmae`"),
        ("[driver]\nready_timeout=10", 'a duration is a text such as "10s" or "250ms" - at `\\$.ready_timeout`'),
        ("[driver]\nready_timeout='soon'", "a duration is a text"),
        ("[driver]\napi_versions=['v2']", "Invalid enum value 'v2'"),
        ("[devices]\nminimum=-1", "`int` >= 0 - at `\\$.minimum`"),
        ("[skip]\n'UNP'='no'", r"\[skip\] UNP: there is no such check"),
        ("[skip]\n'REG-001'=''", "length >= 1"),
        (
            "[config]\ninvalid=['bad.json']\nerrors={'bda.json'='mode'}",
            "bda.json is not one of the files of .*did you mean 'bad.json'",
        ),
        ("[skip]\n'REG-001'='a'\n[xfail]\n'REG-001'='b'", r"REG-001 is in \[skip\] and in \[xfail\]"),
        ("[config]\nvalid=['missing.yaml']", "missing.yaml cannot be read"),
    ],
)
def test_a_mistake_is_reported(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(SettingsError, match=message):
        read_profile(written(tmp_path, text), list(CATALOGUE))


def test_a_missing_profile_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_profile(tmp_path / "no.toml", [])
