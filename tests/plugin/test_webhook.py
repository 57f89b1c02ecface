"""The admission webhook over HTTPS: which objects it refuses and accepts, and the renewal of its certificate."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pty
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dra_devkit.localcluster.apiserver import certificate
from dra_kubeletplugin import Config
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import WebhookSettings
from dra_kubeletplugin.driver.checks import ParameterChecks
from dra_kubeletplugin.driver.config.objects import ConfigReader
from dra_kubeletplugin.errors import DriverFailedError, SettingsError
from dra_kubeletplugin.plugin.webhook import LIMITS, Webhook
from dra_kubeletplugin.resourceapi.conversion import convert
from tests.helpers.api_server import ApiCaller
from tests.helpers.api_server import running_api_server as api_server
from tests.plugin.webhook_reviews import DRIVER, GpuConfig, post, review, running_webhook

ROOT = Path(__file__).parents[2]


def claim(*entries: Any, kind: str = "ResourceClaim") -> JSON:
    config = [{"opaque": {"driver": DRIVER, "parameters": p}} for p in entries]
    spec: JSON = {"devices": {"requests": [], "config": config}}
    match kind:
        case "ResourceClaimTemplate":
            spec = {"spec": spec}
        case "DeviceClass":
            spec = {"config": config}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}, "spec": spec}


def parameters(**fields: Any) -> JSON:
    return {"apiVersion": GpuConfig.API_VERSION, "kind": GpuConfig.KIND, **fields}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
async def test_wrong_parameters_are_refused_in_every_kind_with_path_and_nearest_name(tmp_path: Path, kind: str) -> None:
    async with running_webhook(tmp_path) as (webhook, ca):
        obj = claim(parameters(), parameters(cuont=2), kind=kind)
        status, body = await post(webhook.url, ca, json.dumps(review(obj)).encode())
        response = json.loads(body)
        assert (status, response["response"]["uid"], response["response"]["allowed"]) == (200, "u-1", False)
        message = response["response"]["status"]["message"]
        assert "config[1].opaque: parameters: unknown field 'cuont', did you mean 'count'?" in message
        assert message.startswith("spec.")


async def test_valid_parameters_and_parameters_of_other_drivers_are_accepted(tmp_path: Path) -> None:
    async with running_webhook(tmp_path) as (webhook, _):
        other_claim = claim(parameters())
        other_claim["spec"]["devices"]["config"].append(
            {"opaque": {"driver": "other.example.com", "parameters": {"x": 1}}}
        )
        for obj in (claim(parameters(count=8)), other_claim, {"kind": "Pod", "spec": {}}, claim()):
            assert (await webhook.review(review(obj)))["response"] == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
async def test_an_update_is_allowed_if_its_invalid_entries_are_unchanged_in_any_order(
    tmp_path: Path, kind: str
) -> None:
    invalid, more_invalid, valid = parameters(count=9), parameters(count=10), parameters(count=2)
    reordered = dict(reversed(invalid.items()))

    async with running_webhook(tmp_path) as (webhook, _):

        async def is_allowed(before: list[JSON], after: list[JSON]) -> bool:
            response = (await webhook.review(review(claim(*after, kind=kind), claim(*before, kind=kind))))["response"]
            return bool(response["allowed"])

        assert await is_allowed([invalid], [valid, invalid])  # the old fault has moved
        assert await is_allowed([valid, invalid], [reordered])
        assert await is_allowed([invalid, invalid], [invalid])
        assert not await is_allowed([invalid], [more_invalid])  # another fault in the same place
        assert not await is_allowed([invalid], [invalid, invalid])  # and one more of the kind
        assert not await is_allowed([invalid, valid], [valid, more_invalid])
        assert await is_allowed([more_invalid, invalid], [valid])


async def test_the_server_gets_an_error_for_a_too_large_review_or_too_many_reviews(tmp_path: Path) -> None:
    async with running_webhook(tmp_path) as (webhook, ca):
        obj = claim(parameters())
        obj["metadata"]["annotations"] = {"x": "y" * 3 * 1024 * 1024}
        status, _ = await post(webhook.url, ca, json.dumps(review(obj)).encode())
        assert status == 200  # the largest that an API server reads
        status, response_body = await post(webhook.url, ca, b"x" * (LIMITS.body_bytes + 1))
        assert (status, response_body) == (413, b"the body is larger than 6291456 bytes, the limit\n")


async def test_a_failing_check_of_the_driver_refuses_the_object_and_is_reported(tmp_path: Path) -> None:
    async with running_webhook(tmp_path) as (webhook, _):
        response = (await webhook.review(review(claim(parameters(count=101)))))["response"]
        assert "the checks of GpuConfig raised RuntimeError: boom" in response["status"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"{}", b'{"request": 1}', b'{"apiVersion": "admission.k8s.io/v1beta1", "request": {}}', b"\xff",
             b"[" * 100_000 + b"]" * 100_000]
)  # fmt: skip
async def test_a_body_that_is_no_review_gets_status_400_with_the_missing_field(tmp_path: Path, body: bytes) -> None:
    async with running_webhook(tmp_path) as (webhook, ca):
        status, response_body = await post(webhook.url, ca, body)
        assert status == 400
        assert b"not an AdmissionReview" in response_body
        assert (await post(webhook.url, ca, b"", "/elsewhere"))[0] == 404


async def test_malformed_shapes_of_objects_are_left_to_the_server(tmp_path: Path) -> None:
    async with running_webhook(tmp_path) as (webhook, _):
        for spec in (
            None,
            [],
            {"devices": []},
            {"devices": {"config": {}}},
            {"devices": {"config": [1, {"opaque": 2}]}},
        ):
            obj = {"kind": "ResourceClaim", "spec": spec}
            assert (await webhook.review(review(obj)))["response"]["allowed"]
        invalid_review = review(claim(parameters(no_such_field=1)))
        invalid_review["request"]["kind"] = "ResourceClaim"
        assert not (await webhook.review(invalid_review))["response"]["allowed"]


async def test_a_renewed_certificate_is_used_and_an_incomplete_pair_is_not(tmp_path: Path) -> None:
    async with running_webhook(tmp_path, check_interval=0.01) as (webhook, ca):
        first = ca.read_text()
        new_cert, key = certificate.make(["127.0.0.1"])
        ca.write_text(new_cert)  # its key is not written yet
        while not webhook.certificate.fault:
            await asyncio.sleep(0.005)
        (tmp_path / "before.crt").write_text(first)
        assert (await post(webhook.url, tmp_path / "before.crt", b""))[0] == 400
        (tmp_path / "server.key").write_text(key)
        while webhook.certificate.fault:
            await asyncio.sleep(0.005)
        assert (await post(webhook.url, ca, b""))[0] == 400


async def test_a_certificate_that_changes_while_it_is_read_does_not_stop_the_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ssl.SSLContext.load_cert_chain
    async with running_webhook(tmp_path, check_interval=0.01) as (webhook, ca):
        (second, key), (third, _) = (certificate.make(["127.0.0.1"]) for _ in range(2))

        def load_and_change(self: ssl.SSLContext, *args: Any, **options: Any) -> None:
            read(self, *args, **options)
            ca.write_text(third)  # its key is not written yet

        (tmp_path / "second.crt").write_text(second)
        with monkeypatch.context() as patched:
            patched.setattr(ssl.SSLContext, "load_cert_chain", load_and_change)
            ca.write_text(second)
            (tmp_path / "server.key").write_text(key)
            while not webhook.certificate.fault:
                await asyncio.sleep(0.005)
        assert (await post(webhook.url, tmp_path / "second.crt", b""))[0] == 400


async def test_files_that_are_no_certificate_are_reported_before_the_start(tmp_path: Path) -> None:
    settings = WebhookSettings(
        driver_name=DRIVER, tls_cert_file=tmp_path / "none.crt", tls_private_key_file=tmp_path / "none.key"
    )
    with pytest.raises(SettingsError) as e:
        async with Webhook([ConfigReader(DRIVER, [GpuConfig])], settings).running():
            pass
    flags = {
        "--tls-cert-file (TLS_CERT_FILE)": settings.tls_cert_file,
        "--tls-private-key-file (TLS_PRIVATE_KEY_FILE)": settings.tls_private_key_file,
    }
    for fault, (flag, path) in zip(e.value.faults, flags.items(), strict=True):
        assert fault.startswith(f"{flag} {path} cannot be read: No such file or directory")
    cert, key = certificate.write(tmp_path, ["127.0.0.1"])
    swapped_settings = WebhookSettings(driver_name=DRIVER, tls_cert_file=key, tls_private_key_file=cert)
    with pytest.raises(SettingsError, match=r"has no certificate in PEM form.*has no private key in PEM form"):
        async with Webhook([ConfigReader(DRIVER, [GpuConfig])], swapped_settings).running():
            pass


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """The event that a check of the driver waits for."""
    GatedConfig.GATE = event = threading.Event()
    yield event
    event.set()


class GatedConfig(Config):
    KIND = "GatedConfig"
    API_VERSION = "gpu.example.com/v1"
    GATE: ClassVar[threading.Event]
    where: str = ""

    def __post_init__(self) -> None:
        if self.where == "post_init":
            self.GATE.wait()

    def check(self) -> None:
        if self.where == "check":
            self.GATE.wait()


class NewerConfig(Config):
    KIND = "GatedConfig"
    API_VERSION = "gpu.example.com/v2"
    OLDER = (GatedConfig,)

    @classmethod
    def convert_from(cls, older: GatedConfig, /) -> NewerConfig:
        if older.where == "convert_from":
            older.GATE.wait()
        return cls()


GATED = ConfigReader(DRIVER, [NewerConfig])


def gated_review(where: str) -> bytes:
    return json.dumps(
        review(claim({"apiVersion": "gpu.example.com/v1", "kind": "GatedConfig", "where": where}))
    ).encode()


@pytest.mark.parametrize(
    ("where", "method"),
    [
        ("post_init", "GatedConfig.__post_init__"),
        ("check", "GatedConfig.check"),
        ("convert_from", "NewerConfig.convert_from"),
    ],
)
async def test_a_hanging_check_gets_a_named_error_in_time_and_other_reviews_continue(
    tmp_path: Path, gate: threading.Event, where: str, method: str
) -> None:
    async with running_webhook(tmp_path, readers=[GATED]) as (webhook, ca):
        status, response_body = 0, b""
        while b": it is at " not in response_body:  # until a thread has begun within the second
            status, response_body = await post(webhook.url, ca, gated_review(where), "/validate?timeout=1s")
        assert status == 500  # failurePolicy decides the result
        assert response_body.startswith(b"the check of these parameters has not returned within 0.8 s: it is at ")
        assert response_body.decode().rstrip().endswith(f"in {method}")
        assert not gate.is_set()
        status, body = await post(webhook.url, ca, gated_review(""))
        assert (status, json.loads(body)["response"]["allowed"]) == (200, True)
        assert (await post(webhook.url, ca, b"", "/readyz"))[0] == 200


async def block_all_threads(webhook: Webhook) -> None:
    """Sends reviews whose check does not return, until every thread is blocked."""
    while not webhook.checks.stuck():
        with pytest.raises(DriverFailedError):
            await webhook.review(json.loads(gated_review("check")), 0.05)


async def test_hanging_checks_block_at_most_all_threads_and_then_the_process_reports_unhealthy(
    tmp_path: Path, gate: threading.Event
) -> None:
    async with running_webhook(tmp_path, readers=[GATED]) as (webhook, ca):
        webhook.checks = ParameterChecks(threads=3)
        await block_all_threads(webhook)
        status, response_body = await post(webhook.url, ca, gated_review(""))
        assert status == 500
        assert response_body.startswith(
            b"parameters cannot be validated: all 3 threads run checks that have not returned, one of them "
        )
        assert b"GatedConfig.check" in response_body
        for path in ("/readyz", "/healthz"):
            assert await post(webhook.url, ca, b"", path) == (503, response_body)
        gate.set()
        while webhook.checks.stuck():
            await asyncio.sleep(0.005)
        status, response_body = await post(webhook.url, ca, gated_review(""))
        assert (status, json.loads(response_body)["response"]["allowed"]) == (200, True)
        assert (await post(webhook.url, ca, b"", "/readyz"))[0] == 200


async def test_a_check_whose_wait_for_a_thread_timed_out_is_never_run(gate: threading.Event) -> None:
    checks, has_begun, runs = ParameterChecks(threads=1), threading.Event(), list[int]()

    def wait_for_gate() -> bool:
        has_begun.set()
        return gate.wait()

    first = asyncio.create_task(checks(wait_for_gate, 60))
    await asyncio.to_thread(has_begun.wait)
    with pytest.raises(DriverFailedError, match=r"has not returned within 0\.05 s$"):
        await checks(lambda: runs.append(1), 0.05)  # the first check blocks the only thread, and may still return
    gate.set()
    assert await first is True
    assert await checks(lambda: list(runs), 60) == []


async def configure(curl: ApiCaller, webhook: Webhook, ca: Path, **options: Any) -> None:
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceclaims"],
    }
    client = {"url": f"{webhook.url}/validate", "caBundle": base64.b64encode(ca.read_bytes()).decode()}
    hook = {
        "name": "parameters.gpu.example.com",
        "clientConfig": client,
        "rules": [rule],
        "sideEffects": "None",
        **options,
    }
    configuration = {"metadata": {"name": "gpu"}, "webhooks": [{**hook, "admissionReviewVersions": ["v1"]}]}
    await curl.make("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", configuration)


def command(cert: Path, key: Path) -> list[str]:
    return [
        "webhook",
        "drivers/gpu_example",
        "--address",
        "127.0.0.1:0",
        "--tls-cert-file",
        str(cert),
        "--tls-private-key-file",
        str(key),
    ]


async def test_an_encrypted_key_is_reported_and_no_pass_phrase_is_requested(tmp_path: Path) -> None:
    cert, key = certificate.write(tmp_path, ["127.0.0.1"])
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:abcd", "-out", locked],
        check=True,
        capture_output=True,
    )
    argv = command(cert, locked)
    terminal, shell = pty.openpty()  # OpenSSL asks at the terminal
    process = await asyncio.create_subprocess_exec(
        "setsid", "--ctty", "--wait", sys.executable, "-m", "dra_kubeletplugin.cli", *argv,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdin=shell, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            _, output = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        os.close(terminal)
        os.close(shell)
    assert process.returncode == 2
    assert f"{locked} is encrypted: use a key without a pass phrase" in output.decode()


async def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    cert, key = certificate.write(tmp_path, ["127.0.0.1"])
    argv = command(cert, key)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_kubeletplugin.cli", *argv, cwd=ROOT, env=env, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr
    try:
        async with asyncio.timeout(60):
            line = ""
            while "serving admission reviews at " not in line:
                line = (await process.stderr.readline()).decode()
                assert line
            url = line.partition("serving admission reviews at ")[2].partition("/validate")[0]
            obj = claim(parameters())
            obj["spec"]["devices"]["config"][0]["opaque"]["parameters"]["apiVersion"] = "gpu.resource.example.com/v2"
            status, body = await post(url, cert, json.dumps(review(obj)).encode())
            assert "is not known to gpu.example.com" in json.loads(body)["response"]["status"]["message"]
            process.send_signal(signal.SIGTERM)
            assert (status, await process.wait()) == (200, 0)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_api_server_with_the_webhook_refuses_the_claim_with_its_message(tmp_path: Path) -> None:
    claims = "/apis/resource.k8s.io/{}/namespaces/default/resourceclaims"
    async with running_webhook(tmp_path) as (webhook, ca), api_server() as curl:
        await configure(curl, webhook, ca)
        for version in ("v1", "v1beta2", "v1beta1"):  # the API server requests v1, and gets v1
            sent = claim(parameters(cuont=2))
            sent["spec"]["devices"]["requests"] = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
            response = await curl("POST", claims.format(version), convert(sent, version))
            assert 400 <= response.status < 500
            assert "did you mean 'count'?" in response.message
            assert 'admission webhook "parameters.gpu.example.com" denied the request' in response.message
        sent["spec"]["devices"]["config"] = claim(parameters(count=2))["spec"]["devices"]["config"]
        await curl.make(claims.format("v1"), sent)
