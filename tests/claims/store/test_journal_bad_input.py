"""A person or a newer plugin puts something else in the place of the journal. Each case is one clear error, and the
device of a prepared claim stays held.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_kubeletplugin.claims.store.lines import FORMAT, Change, encode
from dra_kubeletplugin.testing import node_with
from tests.helpers.crash.record_stores import set_format
from tests.helpers.drivers import make_toy_class
from tests.plugin.test_node import allocate, prepare_call, ref


def write_newer_format(path: Path, _: pytest.MonkeyPatch) -> None:
    set_format(path, FORMAT + 2)


def write_other_driver(path: Path) -> None:
    first, _, remainder = path.read_bytes().partition(b"\n")
    header = msgspec.json.decode(first.partition(b"\t")[0][9:], type=Change)
    path.write_bytes(encode(msgspec.structs.replace(header, driver="other.example.com")) + remainder)


def write_folder(path: Path, _: pytest.MonkeyPatch) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def deny_access(path: Path, patch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        path.chmod(0)
        return
    real = os.open  # root may open any file, so this function denies it as a security policy does

    def open_(name: Any, *args: Any, **options: Any) -> int:
        if str(name) == str(path):
            raise PermissionError(13, "Permission denied", str(name))
        return real(name, *args, **options)

    patch.setattr(os, "open", open_)


@pytest.mark.parametrize(
    "corrupt, error",
    [
        (write_newer_format, f"has format {FORMAT + 2}, this plugin's own format is {FORMAT}.*use a newer plugin"),
        (write_folder, "records.journal is a directory: move it away"),
        (deny_access, "records.journal may not be read or written .*see its owner and mode"),
    ],
)
async def test_an_unusable_journal_is_one_error_and_frees_no_device(corrupt: Any, error: str) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()  # has toy-0
        second_claim = await allocate(node, "thief", [{"pool": "node-1", "device": "toy-0"}])
        await node.stop()
        path = node.settings.records_path
        with pytest.MonkeyPatch.context() as patch:
            corrupt(path, patch)
            await node.start()
            message = (await prepare_call(node, ref(second_claim))).claims[second_claim["metadata"]["uid"]].error
            assert_matches(error, [message])
            assert_matches(error, await node.plugin.not_ready())
        await node.stop()
        if corrupt is write_folder:
            path.rmdir()
            path.with_name("away").rename(path)
        elif corrupt is write_newer_format:
            set_format(path, FORMAT)
        else:
            path.chmod(0o600)
        await node.start()
        message = (await prepare_call(node, ref(second_claim))).claims[second_claim["metadata"]["uid"]].error
        assert "toy-0 is still held by claim" in message


async def test_a_journal_of_another_driver_is_set_aside_and_frees_no_device() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        second_claim = await allocate(node, "thief", [{"pool": "node-1", "device": "toy-0"}])
        await node.stop()
        write_other_driver(node.settings.records_path)
        await node.start()
        report = node.plugin.claims.store.journal.report
        assert_matches(r"was damaged \(it belongs to driver other.example.com\) and is set aside as .*damaged-", report)
        message = (await prepare_call(node, ref(second_claim))).claims[second_claim["metadata"]["uid"]].error
        assert "toy-0 is still held by claim" in message


def assert_matches(error: str, texts: list[str]) -> None:
    assert [text for text in texts if re.search(error, text)], texts
