"""Validation rules of custom resources (x-kubernetes-validations) and their subresources, as the API server enforces them."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.localcluster.apiserver.custom_resources import definition
from tests.helpers.api_server import ApiCaller

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOOS = "/apis/example.com/v1/foos"
MERGE = {"Content-Type": "application/merge-patch+json"}


def spec_with_rules(type_: JSON, *rules: str | JSON, **other_fields: JSON) -> JSON:
    """Returns a schema with a field ``x`` of a type, and with rules for this field."""
    validations = [{"rule": r} if isinstance(r, str) else r for r in rules]
    return {"type": "object", "properties": {"x": {**type_, "x-kubernetes-validations": validations}, **other_fields}}


def foo(name: str = "f", **spec: Any) -> JSON:
    return {"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("type_", "rule", "good", "bad"),
    [
        ({"type": "integer"}, "self > 5", 6, 5),
        ({"type": "number"}, "self > 0.5", 1, 0),
        ({"type": "string", "format": "date-time"}, "self > timestamp('2026-01-01T00:00:00Z')", "2026-06-01T00:00:00Z", "2025-01-01T00:00:00Z"),
        ({"type": "string", "format": "duration"}, "self < duration('1h')", "30m", "2h"),
        ({"type": "string", "format": "byte"}, "size(self) == 2", "aGk=", "aGlo"),
        ({"x-kubernetes-int-or-string": True}, "type(self) == int || self == 'all'", "all", "some"),
        ({"type": "array", "items": {"type": "string"}}, "self.all(i, i.startsWith('a'))", ["a"], ["b"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "self.all(k, self[k] > 1)", {"k": 2}, {"k": 1}),
        (
            {"type": "object", "properties": {"a-b": {"type": "integer"}, "in": {"type": "integer"}, "a__c.d/e": {"type": "integer"}}},
            "self.a__dash__b + self.__in__ + self.a__underscores__c__dot__d__slash__e == 6",
            {"a-b": 1, "in": 2, "a__c.d/e": 3},
            {"a-b": 1, "in": 2, "a__c.d/e": 4},
        ),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, "!has(self.n) || self.n == 1", {}, {"n": 2}),
    ],
)  # fmt: skip
async def test_a_rule_sees_a_value_with_the_type_of_its_schema(
    curl: ApiCaller, type_: JSON, rule: str, good: Any, bad: Any
) -> None:
    await curl.make(DEFINITIONS, definition(spec_with_rules(type_, rule)))
    await curl.make(FOOS, foo(x=good))
    rejected = await curl("POST", FOOS, foo("g", x=bad))
    assert (rejected.status, rejected.causes) == (422, [("FieldValueInvalid", "spec.x")])
    assert f"failed rule: {rule}" in rejected.message


NAMED: JSON = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
OPTIONAL = {**NAMED, "required": ["n"]}
MAP = {"type": "array", "x-kubernetes-list-type": "map"}
KEYS = "x-kubernetes-list-map-keys"


@pytest.mark.parametrize(
    ("list_", "reason", "field", "message"),
    [
        ({"type": "array"}, "Required", "items", "must be specified"),
        ({"type": "array", "items": 5}, "Required", "items", "must be specified"),
        ({"type": "array", "items": [NAMED]}, "Forbidden", "items", "items must be a schema object and not an array"),
        ({**MAP, KEYS: ["name"]}, "Required", "items", "must have a schema if x-kubernetes-list-type is map"),
        ({**MAP, "items": NAMED}, "Required", KEYS, "must not be empty if x-kubernetes-list-type is map"),
        ({**MAP, "items": NAMED, KEYS: ["id"]}, "Invalid", KEYS, '["id"]: entries must all be names of item properties'),
        ({**MAP, "items": OPTIONAL, KEYS: ["name"]}, "Required", "items.properties[name].default", "this property is in x-kubernetes-list-map-keys"),
        ({**MAP, "items": {**NAMED, "type": "string"}, KEYS: ["name"]}, "Invalid", "items.type", "must be object if parent array's"),
        ({"type": "array", "items": NAMED, KEYS: ["name"]}, "Required", "x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty"),
        ({**MAP, "x-kubernetes-list-type": "set", "items": NAMED, KEYS: ["name"]}, "Invalid", "x-kubernetes-list-type", '"set": must be map if'),
        ({"type": "array", "items": NAMED, "x-kubernetes-list-type": "bag"}, "NotSupported", "x-kubernetes-list-type", '"atomic", "map", "set"'),
    ],
)  # fmt: skip
async def test_a_schema_of_a_list_that_cannot_be_merged_is_rejected(
    curl: ApiCaller, list_: JSON, reason: str, field: str, message: str
) -> None:
    rejected = await curl("POST", DEFINITIONS, definition({"type": "object", "properties": {"x": list_}}))
    where = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[x]"
    assert rejected.causes == [(f"FieldValue{reason}", f"{where}.{field}")]
    assert message in rejected.message


@pytest.mark.parametrize(
    ("keyword", "value"), [("$ref", "#/definitions/x"), ("definitions", {"x": NAMED}), ("dependencies", {"x": ["y"]})]
)
async def test_a_schema_with_a_keyword_that_kubernetes_lacks_is_rejected(
    curl: ApiCaller, keyword: str, value: Any
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "object", keyword: value}}}
    rejected = await curl("POST", DEFINITIONS, definition(schema))
    where = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[x]"
    assert rejected.causes == [("FieldValueForbidden", f"{where}.{keyword}")]
    assert f"{keyword} is not supported" in rejected.message


async def test_defaults_of_nested_fields_named_as_type_metadata_are_set(curl: ApiCaller) -> None:
    parent = {**NAMED, "properties": {**NAMED["properties"], "kind": {"type": "string", "default": "Gateway"}}}
    parents = {**MAP, KEYS: ["kind", "name"], "items": parent}
    await curl.make(DEFINITIONS, definition({"type": "object", "properties": {"parents": parents}}))
    created = await curl.make(FOOS, foo(parents=[{"name": "g"}]))
    assert created["spec"] == {"parents": [{"name": "g", "kind": "Gateway"}]}


async def test_objects_whose_schema_has_alternatives_can_be_applied(curl: ApiCaller) -> None:
    alternatives = [{"required": ["a"]}, {"required": ["b"]}]
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    await curl.make(DEFINITIONS, definition({"type": "object", "oneOf": alternatives, "properties": properties}))
    apply = {"Content-Type": "application/apply-patch+yaml"}
    applied = await curl("PATCH", f"{FOOS}/f", foo(a="x"), apply, fieldManager="m")
    assert (applied.status, applied.json["spec"]) == (201, {"a": "x"})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"additionalProperties": 1}, "boolean or JSON schema expected"),
        ({"items": {"type": 1}}, "json: cannot unmarshal number into Go struct field JSONSchemaProps.type of type string"),
        ({"properties": {"a": "x"}}, "json: cannot unmarshal string into Go struct field"),
        ({"items": [{"maxLength": "x"}]}, "JSONSchemaProps.maxLength of type int64"),
    ],
)  # fmt: skip
async def test_a_schema_with_values_of_wrong_types_is_rejected(curl: ApiCaller, schema: JSON, message: str) -> None:
    rejected = await curl("POST", DEFINITIONS, definition({"type": "object", "properties": {"x": schema}}))
    assert (rejected.status, message in rejected.message) == (400, True), rejected.message


@pytest.mark.parametrize(
    ("rule", "reason", "field", "message"),
    [
        ({"message": "too small"}, "FieldValueInvalid", "spec.x", 'Invalid value: "object": too small'),
        ({"messageExpression": "'n is ' + string(self.n)"}, "FieldValueInvalid", "spec.x", "n is 1"),
        ({"messageExpression": "string(1 / (self.n - 1))", "message": "no"}, "FieldValueInvalid", "spec.x", "no"),
        ({"reason": "FieldValueForbidden", "message": "no"}, "FieldValueForbidden", "spec.x", "Forbidden: no"),
        ({"reason": "FieldValueRequired", "message": "yes"}, "FieldValueRequired", "spec.x", "Required value: yes"),
        ({"fieldPath": ".n"}, "FieldValueInvalid", "spec.x.n", "failed rule"),
    ],
)
async def test_a_rule_sets_message_reason_and_field(
    curl: ApiCaller, rule: JSON, reason: str, field: str, message: str
) -> None:
    type_ = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await curl.make(DEFINITIONS, definition(spec_with_rules(type_, {"rule": "self.n > 5", **rule})))
    rejected = await curl("POST", FOOS, foo(x={"n": 1}))
    assert rejected.causes == [(reason, field)]
    assert message in rejected.message


async def test_rules_of_the_root_see_the_name_and_nested_fields(curl: ApiCaller) -> None:
    rules = [{"rule": "self.metadata.name == self.spec.x && self.kind == 'Foo'"}]
    await curl.make(DEFINITIONS, definition(spec_with_rules({"type": "string"}, "self != 'never'"), rules))
    await curl.make(FOOS, foo("f", x="f"))
    rejected = await curl("POST", FOOS, foo("g", x="f"))
    assert rejected.causes == [("FieldValueInvalid", "<nil>")]


async def test_a_rule_with_old_self_applies_to_updates(curl: ApiCaller) -> None:
    rules: list[str | JSON] = ["self >= oldSelf", {"rule": "oldSelf.hasValue() || self < 5", "optionalOldSelf": True}]
    await curl.make(DEFINITIONS, definition(spec_with_rules({"type": "integer"}, *rules)))
    assert (await curl("POST", FOOS, foo(x=7))).status == 422, "a rule with optionalOldSelf applies to new objects too"
    await curl.make(FOOS, foo(x=2))
    assert (await curl("PATCH", f"{FOOS}/f", {"spec": {"x": 9}}, headers=MERGE)).status == 200
    assert (await curl("PATCH", f"{FOOS}/f", {"spec": {"x": 8}}, headers=MERGE)).status == 422


async def test_items_of_map_lists_are_matched_by_their_keys(curl: ApiCaller) -> None:
    item = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
    }
    item["x-kubernetes-validations"] = [{"rule": "self.n >= oldSelf.n"}]
    keyed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    await curl.make(DEFINITIONS, definition({"type": "object", "properties": {"x": keyed}}))
    await curl.make(FOOS, foo(x=[{"name": "a", "n": 3}, {"name": "b", "n": 1}]))
    reordered = [{"name": "b", "n": 1}, {"name": "a", "n": 3}, {"name": "c", "n": 0}]
    assert (await curl("PATCH", f"{FOOS}/f", {"spec": {"x": reordered}}, headers=MERGE)).status == 200
    rejected = await curl("PATCH", f"{FOOS}/f", {"spec": {"x": [{"name": "a", "n": 2}]}}, headers=MERGE)
    assert rejected.causes == [("FieldValueInvalid", "spec.x[0]")]


async def test_new_rules_are_not_applied_to_unchanged_values(curl: ApiCaller) -> None:
    created = await curl.make(
        DEFINITIONS, definition(spec_with_rules({"type": "integer"}, "self > 0", y={"type": "integer"}))
    )
    await curl.make(FOOS, foo(x=1, y=1))
    stricter = definition(spec_with_rules({"type": "integer"}, "self > 5", y={"type": "integer"}))
    stricter["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"]
    stored = (await curl("GET", f"{DEFINITIONS}/foos.example.com")).json["metadata"]["resourceVersion"]
    stricter["metadata"]["resourceVersion"] = stored
    assert (await curl("PUT", f"{DEFINITIONS}/foos.example.com", stricter)).status == 200
    assert (await curl("PATCH", f"{FOOS}/f", {"spec": {"y": 2}}, headers=MERGE)).status == 200
    assert (await curl("PATCH", f"{FOOS}/f", {"spec": {"x": 2}}, headers=MERGE)).status == 422


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("self.", "Syntax error"),
        ("self + 1", "must evaluate to bool"),
        ("self.nothing", "does not support field selection"),
        ("object.x == 1", "undeclared reference to 'object'"),
        ("self == 'text'", "no matching overload"),
    ],
)
async def test_a_rule_that_does_not_compile_is_rejected(curl: ApiCaller, rule: str, message: str) -> None:
    rejected = await curl("POST", DEFINITIONS, definition(spec_with_rules({"type": "integer"}, rule)))
    assert rejected.status == 422
    path = "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[x].x-kubernetes-validations[0].rule"
    assert path in [f for _, f in rejected.causes]
    assert message in rejected.message


@pytest.mark.parametrize(
    ("format_", "bad"), [("date-time", "today"), ("duration", "long"), ("date", "2026-13-01"), ("byte", "!")]
)
async def test_a_string_that_violates_its_format_is_rejected(curl: ApiCaller, format_: str, bad: str) -> None:
    await curl.make(
        DEFINITIONS, definition({"type": "object", "properties": {"x": {"type": "string", "format": format_}}})
    )
    rejected = await curl("POST", FOOS, foo(x=bad))
    assert (rejected.status, f"must be of type {format_}" in rejected.message) == (422, True)


async def test_the_definition_sets_the_paths_of_the_scale_subresource(curl: ApiCaller) -> None:
    fields = {"size": {"type": "integer"}, "selector": {"type": "string"}}
    scale = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".spec.selector",
    }
    subresources = {"status": {}, "scale": scale}
    await curl.make(DEFINITIONS, definition({"type": "object", "properties": fields}, subresources=subresources))
    await curl.make(FOOS, foo(size=2, selector="a=b"))
    await curl("PATCH", f"{FOOS}/f/status", {"status": {"replicas": 1}}, headers=MERGE)
    current = (await curl("GET", f"{FOOS}/f/scale")).json
    assert (current["spec"], current["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})
    changed = await curl("PATCH", f"{FOOS}/f/scale", {"spec": {"replicas": 5}}, headers=MERGE)
    assert changed.json["spec"] == {"replicas": 5}
    assert (await curl("GET", f"{FOOS}/f")).json["spec"]["size"] == 5
    wrong = {**scale, "specReplicasPath": ".size"}
    await curl("DELETE", f"{DEFINITIONS}/foos.example.com")
    rejected = await curl("POST", DEFINITIONS, definition({"type": "object"}, subresources={"scale": wrong}))
    assert rejected.status == 422
