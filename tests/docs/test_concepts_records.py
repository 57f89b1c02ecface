"""The records that docs/concepts.md shows and explains are those of a running plugin."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import msgspec

from dra_devkit.testing import node_with
from dra_kubeletplugin import Claim, ContainerEdits, Device, Driver, PreparedDevice
from dra_kubeletplugin.claims.record import Record, State, details, is_intact
from dra_kubeletplugin.cli import main

SECTION = (Path(__file__).parents[2] / "docs/concepts.md").read_text().partition("## The records on a node")[2]
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FIELDS = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)


class Gpu(Driver):
    name = "gpu.example.com"

    def devices(self) -> list[Device]:
        return [Device(f"gpu-{i}", attributes={"model": "A1"}) for i in range(2)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        claim.on_undo(self.power_off, device="gpu-0")
        return [d.prepared(ContainerEdits(env={"GPU": d.name})) for d in claim.devices]

    def power_off(self, claim: Claim, device: str) -> None:
        pass


def normalized(text: str) -> str:
    """Replaces what differs from run to run: UIDs, random names, times, checksums and the age."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r"pod-t0-\w{5}", "CLAIM", text)
    text = re.sub(r'"(created|updated)":[\d.]+', r'"\1":TIME', text)
    text = re.sub(
        r'"cdiVersion":"[\d.]+"', '"cdiVersion":VERSION', text
    )  # A name that begins with a digit needs a newer one.
    text = re.sub(r'"(crc|operation)":"[0-9a-f]{8}"', r'"\1":ID', text)
    return re.sub(r"\b\d+s\b", "AGE", text)


async def test_the_page_shows_the_folder_and_the_claims_and_the_record_of_a_running_plugin() -> None:
    folders, record = _CONSOLE.findall(SECTION)
    async with node_with(Gpu) as node:
        await node.run_pod()
        settings = node.plugin.settings
        names = {p.name for p in [*settings.records_path.iterdir(), *settings.cdi_root.iterdir()]}
        (file,) = settings.records_path.glob("[!._]*.json")
        content, out = file.read_text(), io.StringIO()
        roots = ["--kubelet-root", str(settings.kubelet_root), "--cdi-root", str(settings.cdi_root)]
        with contextlib.redirect_stdout(out):
            assert main(["claims", *roots]) == 0
    listed, _, table = folders.partition("$ dra claims\n")
    shown = {line for line in listed.splitlines() if line and not line.startswith(("$", "/"))}
    assert {normalized(name) for name in shown} == {normalized(name) for name in names}
    assert normalized(table) == normalized(out.getvalue())
    example = record.partition("\n")[2]
    assert is_intact(example.encode()), "the checksums are those of the shown lines"
    assert normalized(example) == normalized(content)
    head, body = (json.loads(line) for line in example.splitlines())
    first, second = (set(re.findall(r"`(\w+)`", " ".join(_FIELDS.findall(table)))) for table in tables())
    assert first == head.keys()
    assert second >= body.keys() - {"crc"}


def tables() -> tuple[str, str]:
    """Returns the rows about the head and about the body."""
    _, head, rest = SECTION.partition("| field of the head |")
    first, _, second = rest.partition("| field of the body |")
    assert head and second
    return first, second.partition("\n\n")[0]


def test_the_page_explains_each_field_of_a_body() -> None:
    flags = dict.fromkeys(("shared_unknown", "complete", "recovered", "superseded", "undone"), True)
    retries = {"error": "e", "attempts": 1, "retry_at": 1.0}
    record = Record(
        "u", "ns", "n", State.PREPARED, "b", "", [{}], [{}], [{}], cdi={"a": 1}, metadata={"a": 1}, operation="1"
    )
    record = msgspec.structs.replace(record, **flags, **retries)
    assert set(re.findall(r"`(\w+)`", " ".join(_FIELDS.findall(tables()[1])))) == details(record).keys()
