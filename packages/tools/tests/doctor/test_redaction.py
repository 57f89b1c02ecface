"""``dra gather`` removes passwords from objects, arguments, logs and files, and reads malformed files without failing."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dra_tools.doctor.examination import Examination
from dra_tools.doctor.gathering import Archive, gather
from dra_tools.doctor.redaction import redact_object, redact_text

SECRET = "hunter2Hunter2"  # noqa: S105 a test value
PEM = "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t" + SECRET


@pytest.mark.parametrize(
    "obj",
    [
        {"args": ["--password", SECRET]},
        {"args": [f"--db-password={SECRET}"]},
        {"hooks": [{"hookName": "createContainer", "path": "/h", "args": ["h", "--api-key", SECRET]}]},
        {"users": [{"name": "u", "user": {"client-key-data": SECRET, "token": SECRET}}]},
        {"tokens": [SECRET]},
        {"credentials": {"user": "u", "value": SECRET}},
        {"vars": [{"name": "DB_PASSWORD", "value": SECRET}]},
        {"licenseKey": SECRET},
        {"accessKey": SECRET},
        {"annotations": {"kapp.k14s.io/original": json.dumps({"auths": {"r.io": {"auth": SECRET}}})}},
        {"annotations": {"x": json.dumps({"credentials": {"user": "u", "value": SECRET}})}},
        {"message": json.dumps({"inner": json.dumps({"secret": SECRET})})},
        {"spec": [{"env": [{"name": "X", "value": SECRET}]}]},
        {"spec": [{"env": [f"X={SECRET}"]}]},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}},
        {"metadata": {"managedFields": [SECRET]}},
        *({"spec": [{name: SECRET}]} for name in ("password", "apiKey", "MY_SECRET", "private_key", "Authorization")),
    ],
)
def test_redaction_removes_each_secret_of_an_object(obj: Any) -> None:
    assert SECRET not in json.dumps(redact_object(obj))


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"msg": "login", "password": SECRET}),
        json.dumps({"msg": json.dumps({"token": SECRET})}),
        "before\n" + json.dumps({"msg": f"--token {SECRET}"}) + "\nafter",
        f'level=info msg="sent {{\\"token\\": \\"{SECRET}\\"}}"',
        f"Authorization: Basic {SECRET}",
        f"Authorization: token {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
        f"Set-Cookie: sid={SECRET}; Path=/",
        f"redis://:{SECRET}@host:6379",
        f"https://{SECRET}@example.com/x",
        f"postgres://u:pa@{SECRET}@host/db",
        f"postgres://u:pa/{SECRET}@host/db",
        f"https://example.com/x?sv=1&sig={SECRET}",
        f"DefaultEndpointsProtocol=https;AccountKey={SECRET}",
        f"client-key-data: {PEM}",
        f"key {PEM}",
        f"password='my {SECRET}'",
        f"password: |\n  {SECRET}\n  {SECRET}\nuser: u",
        f"exec x --token {SECRET} -v",
        f"curl -u admin:{SECRET} https://example.com",
        f"pwd={SECRET}",
        f"https://user:{SECRET}@host/x",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----\nend",
        f"with Authorization: Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5l.{SECRET}",
    ],
)
def test_redaction_removes_each_secret_of_a_text(line: str) -> None:
    redacted = redact_text(line)
    assert SECRET not in redacted and "eyJ" not in redacted
    assert line.startswith("with ") <= redacted.startswith("with ") and line.endswith("\nend") <= redacted.endswith(
        "\nend"
    )


def test_redaction_keeps_text_and_objects_without_secrets() -> None:
    log = (
        "prepared claim default/a\nunix:///run/x.sock, https://example.com:8080/v1@sha256:0123, basic checks\n[1] list"
    )
    assert redact_text(log) == log
    pod = {
        "volumes": [{"secret": {"secretName": "s"}}],
        "imagePullSecrets": [{"name": "r"}],
        "args": ["--secret-name", "x"],
    }
    assert redact_object(pod) == pod
    assert redact_object({"automountServiceAccountToken": True}) == {"automountServiceAccountToken": True}


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    "piece", ["a", "-", "token", "://", "://a:", "token='", "token ", "\\", "--token ", "basic a", "eyJaaaaaaaaa"]
)
def test_the_redaction_time_of_a_long_line_is_linear_in_its_length(piece: str) -> None:
    redact_text("token=" + piece * (300_000 // len(piece)))  # takes hours if the time is quadratic in the length


def alias_bomb() -> str:
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    return "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in pairs)


MALFORMED_FILES: dict[str, Any] = {
    "aliases.yaml": alias_bomb(),
    "itself.yaml": "a: &a [*a]\n",
    "deep.json": "[" * 10_000 + "]" * 10_000,
    "date.yaml": "2020-01-01: x\nb: 2020-99-99\n",
    "list-as-key.yaml": "? [a, b]\n: c\n",
    "bytes.json": bytes(range(256)),
}


async def test_gather_continues_after_each_malformed_or_unreadable_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cdi"
    folder.mkdir(parents=True)
    for name, content in MALFORMED_FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(folder / "pipe.json")
    (folder / "endless.json").symlink_to("/dev/zero")
    (folder / "loop.json").symlink_to("loop.json")
    with (folder / "huge.json").open("wb") as f:
        f.truncate(1 << 40)
    await _gather(tmp_path)
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        names = {Path(n).name for n in tar.getnames()}
    prefix = str(folder).lstrip("/").replace("/", "_")
    refused = ("pipe.json", "endless.json", "loop.json", "huge.json")
    assert {f"{prefix}_{n}" for n in MALFORMED_FILES} | {f"{prefix}_{n}.error" for n in refused} <= names


async def _gather(root: Path) -> None:
    examination = Examination(
        host_root=root, kubelet_root=root / "kubelet", cdi_root=root / "run/cdi", sysfs_root=root / "sys",
        dev_root=root / "dev", api="no API server", node="", devices=(), permissions=(), timeout=1, host=True,
    )  # fmt: skip
    archive = Archive(root / "out.tar.gz")
    await gather(examination, [], archive, lambda _: None)
    archive.close()
