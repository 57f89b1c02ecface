"""The page with the use of devices: its script policy, its unchanged responses, and which requests it rejects."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import msgspec
import pytest

from dra_kubeletplugin.base.http_server import pages
from dra_kubeletplugin.base.http_server.server import Request
from dra_tools.page import usage_page
from dra_tools.usage.cards import Line
from dra_tools.usage.rows import PodRow
from dra_tools.usage.view import GroupView, Tile, View
from packages.tools.tests.usage.test_usage import rows_of


def request(
    path: str = "/overview.json", method: str = "GET", query: Mapping[str, str] = MappingProxyType({}), **headers: str
) -> Request:
    request_headers = {"host": "127.0.0.1:80"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return Request(method, path, query, request_headers, b"")


def test_the_page_may_run_only_its_own_script_and_style_and_uses_no_other_origin() -> None:
    page = usage_page.page()
    policy = page.headers["Content-Security-Policy"]
    text = page.body.decode()
    for kind in ("script", "style"):
        (inline,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|\son\w+=|style=", text)


@pytest.mark.parametrize(("variable", "kind", "of_javascript"), [
    ("d", Line, set()), ("group", GroupView, set()), ("t", Tile, set()), ("shown", View, set()), ("p", PodRow, set()),
])  # fmt: skip
def test_the_script_reads_only_fields_that_the_view_has(variable: str, kind: type, of_javascript: set[str]) -> None:
    """A field that was renamed in the model is `undefined` in the script, and the page shows nothing in its place."""
    script = usage_page.FILE.read_text().partition("<script>")[2]
    read = set(re.findall(rf"(?<![\w.]){variable}\.(\w+)", script))
    assert read
    assert read - of_javascript <= {f.name for f in fields(kind)}


def test_rows_that_the_page_has_are_not_sent_again() -> None:
    page_model = rows_of(3)
    first = usage_page.data(request(), page_model)
    assert msgspec.json.decode(first.body)["devices"][2]["holders"][0]["claim"] == "ml/c"
    unchanged_response = usage_page.data(request(if_none_match=first.headers["ETag"]), replace(page_model, at=9.0))
    assert (unchanged_response.status, unchanged_response.body) == (304, b"")
    assert usage_page.data(request(if_none_match=first.headers["ETag"]), rows_of(4)).status == 200


def test_the_view_is_filtered_and_grouped_by_the_server_and_details_come_on_request() -> None:
    page_model = rows_of(3)
    query = {"filter": "numa=0", "group": "numa", "sort": "use"}
    view = msgspec.json.decode(usage_page.data(request("/view.json", query=query), page_model).body)
    assert [g["title"] for g in view["groups"]] == ["n1  NUMA 0"]
    assert [line["name"] for line in view["groups"][0]["lines"]] == ["gpu-2", "gpu-0"], "held before free"
    unknown_group_response = usage_page.data(
        request("/view.json", query={"group": "constructor", "sort": "x"}), page_model
    )
    assert [g["title"] for g in msgspec.json.decode(unknown_group_response.body)["groups"]] == ["n1"]
    ids = " ".join(d.id for d in page_model.devices[:2])
    ((title, pairs),) = msgspec.json.decode(
        usage_page.data(request("/details.json", query={"devices": f"{ids} removed"}), page_model).body
    )
    assert (title, [name for name, _ in pairs]) == ("", ["gpu-0", "gpu-1"])


@pytest.mark.parametrize(("page_request", "status"), [
    (request(), 0),
    (request(host="localhost:8080"), 0),
    (request(host="[::1]:8080"), 0),
    (request(host="node-1:8080"), 0),
    (request(host="evil.example.com"), 403),
    (request(host=""), 403),
    (request(origin="http://127.0.0.1:80"), 0),
    (request(origin="http://127.0.0.1:81"), 403),
    (request(origin="null"), 403),
    (request(sec_fetch_site="same-origin"), 0),
    (request(sec_fetch_site="cross-site"), 403),
    (request(sec_fetch_site="same-site"), 403),
    (request("/", sec_fetch_site="cross-site"), 0),  # a link from a dashboard: the page contains no data
    (request(method="POST"), 405),
    (request(method="DELETE"), 405),
])  # fmt: skip
def test_only_read_requests_of_the_server_s_own_page_are_accepted(page_request: Request, status: int) -> None:
    refusal_response = pages.rejection(page_request, {"node-1"})
    assert (refusal_response.status if refusal_response else 0) == status
