"""Gets, lists and watches objects."""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.http_server.server import Request, Response
from dra_kubeletplugin.base.json_types import JSON

from . import selectors, strategy, watching
from .columns import table
from .kinds import ServedKind
from .requests import RequestInfo, flag, json_response, not_found, number, resource_version, sort_key, table_of
from .status_errors import StatusError, bad_request
from .storage import ExpiredError, Match, Objects, Storage
from .validation import events

_DEFAULT_WATCH = 1800.0  # seconds
_GONE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the "
    "continue parameter."
)


class Reader:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def get(self, request: Request, target: RequestInfo) -> Response:
        obj = self.storage.get(target.storage, target.namespace, target.name)
        if obj is None:
            raise not_found(target)
        if (include := table_of(request)) is not None:
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"]}
            return json_response(table(target.kind.columns, [self._shown(target, obj)], metadata, include=include))
        return json_response(strategy.outgoing(target.kind, target.version, obj))

    @staticmethod
    def _shown(target: RequestInfo, obj: JSON) -> JSON:
        """Returns the object in the form that the table columns read."""
        return strategy.outgoing(target.kind, target.version, obj) if not target.kind.structured else obj

    def list(self, request: Request, target: RequestInfo) -> Response:
        matches, _ = self.matching(request, target)
        include = table_of(request)
        found, metadata = self._page(request, target, matches)
        if include is not None:
            shown = [self._shown(target, o) for o in found]
            return json_response(table(target.kind.columns, shown, metadata, include=include))
        items = [strategy.outgoing(target.kind, target.version, o) for o in found]
        for item in items:
            item.pop("kind", None)
            item.pop("apiVersion", None)
        api_version = target.kind.api_version(target.version)
        return json_response(
            {"kind": f"{target.kind.kind}List", "apiVersion": api_version, "metadata": metadata, "items": items}
        )

    def watch(self, request: Request, target: RequestInfo) -> Response:
        version_text = request.query.get("resourceVersion", "")
        send_initial = flag(request, "sendInitialEvents")
        bookmarks = flag(request, "allowWatchBookmarks")
        if send_initial and request.query.get("resourceVersionMatch") != "NotOlderThan":
            message = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise StatusError(422, "Invalid", f"resourceVersionMatch: Forbidden: {message}")
        initial = send_initial or version_text in {"", "0"}
        since = self.storage.version if version_text in {"", "0"} else resource_version(version_text)
        if send_initial:
            self._check_not_newer(since)
        matches, only = self.matching(request, target)
        seconds = number(request, "timeoutSeconds")
        options = watching.WatchOptions(
            since,
            initial,
            send_initial and bookmarks,
            bookmarks,
            table_of(request),
            float(seconds) if seconds and seconds > 0 else _DEFAULT_WATCH,
            only,
        )
        return Response(200, stream=watching.events(self.storage, target, matches, options))

    # --- selection ------------------------------------------------------------------------------

    def matching(self, request: Request, target: RequestInfo) -> tuple[Match, tuple[tuple[str, ...], str] | None]:
        """Returns a filter for the objects that a request selects.

        Returns:
            A function that tests an object; and the path and value of a field that all selected objects have, or None.

        Raises:
            StatusError: A selector is invalid.
        """
        try:
            terms = selectors.fields(request.query.get("fieldSelector", ""), target.kind.fields)
            by_label = selectors.labels(request.query.get("labelSelector", ""))
        except selectors.SelectorError as e:
            raise bad_request(str(e)) from None
        terms = [_in_storage(target.kind, t) for t in terms]
        namespace, name = target.namespace, target.name

        def matches(obj: Mapping[str, Any]) -> bool:
            meta = obj["metadata"]
            if (namespace and meta.get("namespace") != namespace) or (name and meta["name"] != name):
                return False
            return all(t.matches(obj) for t in terms) and by_label(obj)

        exact = next(((t.path, t.value) for t in terms if not t.negated), None)
        if exact is None and name:
            exact = (("metadata", "name"), name)
        if exact is None and namespace:
            exact = (("metadata", "namespace"), namespace)
        return matches, exact

    def _page(self, request: Request, target: RequestInfo, matches: Match) -> tuple[Objects, JSON]:
        limit = number(request, "limit") or 0
        if limit < 0:
            raise bad_request(f"limit: Invalid value: {limit}: must be greater than or equal to 0")
        token = request.query.get("continue", "")
        version_text = request.query.get("resourceVersion", "")
        match = request.query.get("resourceVersionMatch", "")
        after: tuple[str, str] | None = None
        if token:
            if version_text not in {"", "0"}:
                raise bad_request("specifying resource version is not allowed when using continue")
            version, after = _token(token)
            found = self._at(target, version, _GONE)
        elif match == "Exact":
            version = resource_version(version_text)
            found = self._at(target, version, "The resourceVersion for the provided list is too old.")
        else:
            version = self.storage.version
            if version_text not in {"", "0"}:
                self._check_not_newer(resource_version(version_text))
            elif match and not version_text:
                raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
            found = self.storage.list(target.storage, target.namespace)
        if after is not None:
            found = found[bisect_right(found, after, key=sort_key) :]
        if request.query.get("fieldSelector") or request.query.get("labelSelector"):
            found = [o for o in found if matches(o)]
        chosen = found
        metadata: JSON = {"resourceVersion": str(version)}
        if limit and len(chosen) > limit:
            last = sort_key(chosen[limit - 1])
            text = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": last})
            metadata["continue"] = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
            if not (request.query.get("fieldSelector") or request.query.get("labelSelector")):
                metadata["remainingItemCount"] = len(chosen) - limit
            chosen = chosen[:limit]
        return chosen, metadata

    def _at(self, target: RequestInfo, version: int, message: str) -> Objects:
        if version == self.storage.version:
            return self.storage.list(target.storage, target.namespace)
        self._check_not_newer(version)
        try:
            return self.storage.list_at(target.storage, target.namespace, version)
        except ExpiredError:
            raise StatusError(410, "Expired", message) from None

    def _check_not_newer(self, version: int) -> None:
        if version > self.storage.version:
            message = f"Too large resource version: {version}, current: {self.storage.version}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _token(text: str) -> tuple[int, tuple[str, str]]:
    try:
        found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, name = found["start"]
        return int(found["rv"]), (str(namespace), str(name))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise bad_request("continue key is not valid: this server did not issue it") from None


def _in_storage(kind: ServedKind, term: selectors.FieldTerm) -> selectors.FieldTerm:
    """Converts the field name in a selector for events to the name in stored events, for both API groups of events."""
    if kind.storage != "events":
        return term
    first, *rest = term.path
    if term.path == ("source",):
        rest = ["component"]
    first = events.core_name(first) if kind.group else first
    return selectors.FieldTerm((first, *rest), term.value, term.negated)
