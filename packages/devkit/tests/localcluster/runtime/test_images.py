"""Images from folders and OCI layouts, and container logs in the format of ``kubectl logs``."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.localcluster.runtime.container_logs import ContainerLog
from dra_devkit.localcluster.runtime.images import Image, ImageError, Images, parse_option
from dra_devkit.localcluster.runtime.interface import ContainerError, LogOptions


def blob(layout: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    path = layout / "blobs/sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def layer(files: dict[str, str], *, links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return out.getvalue()


def layout(folder: Path, layers: list[bytes], config: dict[str, Any]) -> Path:
    manifest = {
        "config": blob(folder, json.dumps({"config": config}).encode()),
        "layers": [blob(folder, data) for data in layers],
    }
    other = {"digest": "sha256:" + "0" * 64, "platform": {"os": "windows", "architecture": "amd64"}}
    nested = blob(folder, json.dumps({"manifests": [other, blob(folder, json.dumps(manifest).encode())]}).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [nested]}))
    return folder


@pytest.mark.parametrize(
    ("image_name", "option_name"),
    [
        ("busybox", "busybox"),
        ("busybox:1.36", "busybox"),
        ("docker.io/library/busybox:1.36@sha256:abc", "busybox:1.36"),
        ("docker.io/busybox", "busybox"),
        ("user/app:2", "docker.io/user/app"),
        ("localhost:5000/app:2", "localhost:5000/app:2"),
        ("registry.k8s.io/pause:3.9", "*"),
    ],
)
def test_an_image_name_is_matched_as_a_registry_resolves_it(tmp_path: Path, image_name: str, option_name: str) -> None:
    assert Images({option_name: tmp_path}, tmp_path).find(image_name).root == tmp_path


def test_a_missing_image_is_rejected_with_the_option_that_adds_it(tmp_path: Path) -> None:
    with pytest.raises(
        ContainerError, match=r'image "ubuntu:24.04" is not on this machine.*--image ubuntu:24.04=FOLDER'
    ) as error:
        Images({"localhost:5000/ubuntu": tmp_path}, tmp_path).find("ubuntu:24.04")
    assert error.value.reason == "ErrImagePull"


def test_layers_overwrite_and_delete_files_of_lower_layers(tmp_path: Path) -> None:
    layers = [
        layer({"etc/a": "1", "etc/b": "1", "opt/old/x": "1", "usr/lib/y": "1"}, links={"lib": "usr/lib"}),
        layer({"etc/a": "2", "etc/.wh.b": "", "opt/old/.wh..wh..opq": "", "opt/old/z": "2", "lib/new": "2"}),
    ]
    config = {
        "Entrypoint": ["/app"],
        "Cmd": ["serve"],
        "Env": ["A=1"],
        "User": "5:6",
        "WorkingDir": "/srv",
        "StopSignal": "QUIT",
    }
    images = Images({"app": layout(tmp_path / "layout", layers, config)}, tmp_path / "cache")
    image = images.find("app:1")
    assert sorted(str(p.relative_to(image.root)) for p in image.root.rglob("*") if p.is_file()) == [
        "etc/a", "opt/old/z", "usr/lib/new", "usr/lib/y",
    ]  # fmt: skip
    assert (image.root / "etc/a").read_text() == "2"
    assert (image.env, image.working_dir, image.stop_signal, image.user_of(None, None)) == (
        ["A=1"],
        "/srv",
        "QUIT",
        (5, 6),
    )
    assert image.arguments([], []) == ["/app", "serve"]
    assert image.arguments([], ["other"]) == ["/app", "other"]
    assert image.arguments(["/bin/sh"], []) == ["/bin/sh"]
    assert images.find("app:2") is image


@pytest.mark.parametrize("escape", ["../outside", "link/file", "a/../../outside"])
def test_a_layer_with_a_path_outside_the_image_is_rejected_and_writes_nothing(tmp_path: Path, escape: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    layers = [layer({"kept": ""}, links={"link": str(tmp_path / "elsewhere")}), layer({escape: "x"})]
    images = Images({"*": layout(tmp_path / "layout", layers, {})}, tmp_path / "cache" / "deep")
    with pytest.raises(ContainerError) as error:
        images.find("app")
    assert error.value.reason == "ErrImagePull"
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("index", ["", "[]", '{"manifests": []}', '{"manifests": [{"digest": "md5:x"}]}'])
def test_an_invalid_layout_is_reported_with_its_path(tmp_path: Path, index: str) -> None:
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(ContainerError, match=str(tmp_path)):
        Images({"*": tmp_path}, tmp_path / "cache").find("app")


def test_users_and_groups_come_from_the_files_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("broken\nweb:x:33:34::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("disk:x:6:\n")
    image = Image(tmp_path, user="web:disk")
    assert image.user_of(None, None) == (33, 6)
    assert image.user_of(33, None) == (33, 34)
    assert image.user_of(99, 1) == (99, 1)
    with pytest.raises(ContainerError, match="no users found: nobody"):
        Image(tmp_path, user="nobody").user_of(None, None)


def test_a_root_folder_has_no_entry_point(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="no command specified"):
        Image(tmp_path).arguments([], [])


@pytest.mark.parametrize("text", ["busybox", "=x", "busybox=", "busybox=/nowhere-at-all"])
def test_an_option_without_a_folder_is_rejected(text: str) -> None:
    with pytest.raises(ImageError, match="--image"):
        parse_option(text)


# --- logs -------------------------------------------------------------------------------------------------


async def feed(log: ContainerLog, *parts: bytes) -> None:
    reader = asyncio.StreamReader()
    for part in parts:
        reader.feed_data(part)
    reader.feed_eof()
    await log.take(reader, "stdout", lambda data: None)


async def read_log(log: ContainerLog, **options: Any) -> bytes:
    return b"".join([part async for part in log.read(LogOptions(**options))])


async def test_the_log_contains_the_exact_output_of_the_container(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    data = b"one\n\ntwo\xff\n" + b"x" * 40_000 + b"\nno newline"
    await feed(log, *(data[i : i + 7_001] for i in range(0, len(data), 7_001)))
    assert await read_log(log) == data
    log.close()
    assert await read_log(log, follow=True) == data


async def test_tail_limit_and_timestamps_use_lines_of_the_container(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    await feed(log, b"a\n" + b"b" * 40_000 + b"\nc\n")
    assert await read_log(log, tail=1) == b"c\n"
    assert await read_log(log, tail=2) == b"b" * 40_000 + b"\nc\n"
    assert await read_log(log, tail=0) == b""
    assert await read_log(log, tail=99) == await read_log(log)
    assert await read_log(log, limit=5) == b"a\nbbb"
    assert [line.partition(b"Z ")[2][:1] for line in (await read_log(log, timestamps=True)).splitlines()] == [
        b"a",
        b"b",
        b"c",
    ]
    assert await read_log(log, since=4e9) == b""
    log.close()


async def test_a_follower_gets_later_lines_and_ends_with_the_container(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "log")
    log.write("stdout", "first")
    following = log.read(LogOptions(follow=True))
    assert await anext(following) == b"first\n"  # type: ignore[call-overload]
    next_part = asyncio.ensure_future(anext(following))  # type: ignore[call-overload]
    await asyncio.sleep(0)
    log.write("stderr", "second\nthird")
    later = await next_part  # the follower can read between the two lines
    log.close()
    assert later + b"".join([part async for part in following]) == b"second\nthird\n"


@pytest.mark.skipif(not Path("/bin/busybox").is_file(), reason="needs a static /bin/busybox")
async def test_pods_that_start_together_share_one_complete_image(tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    data = [layer({f"files/{i}": str(i) for i in range(300)})]
    images = Images({"app": layout(tmp_path / "layout", data, {})}, tmp_path / "cache")
    names = ["busybox", "app"] * 8
    unpacked = await asyncio.gather(*(asyncio.to_thread(images.find, name) for name in names))
    assert len({id(image) for image in unpacked[1::2]}) == 1
    assert (unpacked[0].root / "bin/sh").exists()
    assert len(list((unpacked[1].root / "files").iterdir())) == 300
