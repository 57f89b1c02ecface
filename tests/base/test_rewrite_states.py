"""Each state of a metadata file during an update is a complete file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import metadata
from dra_kubeletplugin.base import rewrite
from dra_kubeletplugin.metadata.document import decode_whole, encode
from tests.helpers.crash.file_faults import failing_calls

TEXTS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.none() | st.text("xyz", max_size=60), min_size=1, max_size=3
)


@given(st.lists(TEXTS, max_size=8))
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_updates_is_in_the_file_after_each_update(updates: list[dict[str, str | None]]) -> None:
    """A reader between any two writes also reads a complete file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"

        def content(generation: int, facts: dict[str, str]) -> bytes:
            wire = {n: {"string": v} for n, v in facts.items()}
            device = {"driver": "d", "pool": "p", "name": "n", "attributes": wire}
            return encode(metadata.ClaimRef("c", "ns", "u"), generation, {"r": [device]})

        facts: dict[str, str] = {}
        file.write_bytes(content(1, facts))
        inode = file.stat().st_ino
        for generation, update in enumerate(updates, 2):
            old_facts = facts
            facts = {n: v for n, v in {**facts, **update}.items() if v is not None}
            states: list[bytes] = []
            with failing_calls(0, "pwrite", "ftruncate", do=lambda: states.append(file.read_bytes())):  # noqa: B023
                rewrite.rewrite(str(file), content(generation, facts))
            for state in states:
                document = decode_whole(state, file)
                assert document is not None
                assert dict(document.devices[0].attributes) in (old_facts, facts)
            assert file.read_bytes() == content(generation, facts)
            assert file.stat().st_ino == inode
