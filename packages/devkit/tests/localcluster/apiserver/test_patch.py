"""Strategic merge patches with the merge keys and directives of a kind's schema."""

from __future__ import annotations

import pytest

from dra_devkit.localcluster.apiserver import patch
from dra_devkit.schemas import tables
from dra_kubeletplugin.base.json_types import JSON

POD = tables.named("core.v1.Pod")

DEPLOYMENT = tables.named("apps.v1.Deployment")


def object_with(spec: JSON) -> JSON:
    return {"spec": spec}


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        # The merge key of a list identifies its items, at every position.
        (
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]},
            {"containers": [{"name": "b", "image": "2"}, {"name": "c"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}]},
        ),
        (
            {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "x"}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "y"}, {"containerPort": 81}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "y"}, {"containerPort": 81}]}]},
        ),
        # A list without a merge key is replaced as one value; tolerations are such a list.
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"containers": [{"name": "a", "args": ["x"]}]}, {"containers": [{"name": "a", "args": ["y"]}]}, {"containers": [{"name": "a", "args": ["y"]}]}),
        # Directives.
        (
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b"}]},
        ),
        (
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
        ),
        ({"nodeSelector": {"a": "b", "c": "d"}}, {"nodeSelector": {"$patch": "replace", "x": "y"}}, {"nodeSelector": {"x": "y"}}),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        ),
        (
            {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
            {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "a", "image": "i"}]},
            {"containers": [{"name": "c"}, {"name": "b"}, {"name": "a", "image": "i"}]},
        ),
        ({"containers": [{"name": "a", "image": "i"}]}, {"containers": [{"name": "a", "image": None}]}, {"containers": [{"name": "a"}]}),
    ],
)  # fmt: skip
def test_a_strategic_patch_merges_by_the_schema_of_the_kind(before: JSON, change: JSON, after: JSON) -> None:
    assert patch.strategic(object_with(before), object_with(change), POD) == object_with(after)
    template = {"spec": {"template": object_with(before)}}
    assert patch.strategic(template, {"spec": {"template": object_with(change)}}, DEPLOYMENT) == {
        "spec": {"template": object_with(after)}
    }


def test_merged_lists_of_plain_values_are_sets() -> None:
    before: JSON = {"metadata": {"finalizers": ["a/b", "c/d"]}}
    assert patch.strategic(before, {"metadata": {"finalizers": ["e/f", "a/b"]}}, POD) == {
        "metadata": {"finalizers": ["a/b", "c/d", "e/f"]}
    }
    deletion = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}}
    assert patch.strategic(before, deletion, POD) == {"metadata": {"finalizers": ["c/d"]}}


@pytest.mark.parametrize("change", [{"containers": [{"image": "i"}]}, {"$patch": "explode"}, {"$retainKeys": 5}])
def test_an_invalid_patch_is_reported(change: JSON) -> None:
    with pytest.raises(patch.PatchError):
        patch.strategic(object_with({"containers": [{"name": "a"}]}), object_with(change), POD)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "remove", "path": "/spec/nope"}, "can't remove a non-existent object 'nope'"),
        ({"op": "add", "path": "/spec/containers/9", "value": {}}, "can't insert outside of list"),
        (
            {"op": "test", "path": "/spec/containers/0/name", "value": "b"},
            "testing value /spec/containers/0/name failed",
        ),
        ({"op": "add", "path": "/spec"}, "does not contain a 'value' member"),
        ({"op": "explode", "path": "/spec"}, "Unknown operation 'explode'"),
        ({"op": "remove", "path": ""}, "can't remove the whole document"),
        ({"op": "remove", "path": 5}, "Invalid 'path'"),
        ("remove", "a JSON patch is a list of operations"),
    ],
)
def test_an_invalid_json_patch_is_reported(operation: object, message: str) -> None:
    with pytest.raises(patch.PatchError, match=message):
        patch.json_patch(object_with({"containers": [{"name": "a"}]}), [operation])


def test_a_json_patch_may_test_that_a_path_does_not_exist() -> None:
    """As on Kubernetes, where a client creates a list only if it does not exist."""
    operations = [{"op": "test", "path": "/spec", "value": None}, {"op": "add", "path": "/spec", "value": []}]
    assert patch.json_patch({}, operations) == {"spec": []}
