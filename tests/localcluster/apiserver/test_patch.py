"""Strategic merge patches, by the merge keys and directives of a kind's schema."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.localcluster.apiserver import patch
from dra_kubeletplugin.resourceapi.schemas import tables

JSON = dict[str, Any]

POD = tables.named("core.v1.Pod")

DEPLOYMENT = tables.named("apps.v1.Deployment")


def of(spec: JSON) -> JSON:
    return {"spec": spec}


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        # Items are the same by the merge key of their list, wherever they stand.
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
        # A list without a key is one value; so are tolerations.
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
def test_a_strategic_patch_merges_as_the_schema_of_the_kind_states(before: JSON, change: JSON, after: JSON) -> None:
    assert patch.strategic(of(before), of(change), POD) == of(after)
    template = {"spec": {"template": of(before)}}
    assert patch.strategic(template, {"spec": {"template": of(change)}}, DEPLOYMENT) == {
        "spec": {"template": of(after)}
    }


def test_lists_of_plain_values_are_sets_where_the_schema_merges_them() -> None:
    before: JSON = {"metadata": {"finalizers": ["a/b", "c/d"]}}
    assert patch.strategic(before, {"metadata": {"finalizers": ["e/f", "a/b"]}}, POD) == {
        "metadata": {"finalizers": ["a/b", "c/d", "e/f"]}
    }
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/b"]}}
    assert patch.strategic(before, gone, POD) == {"metadata": {"finalizers": ["c/d"]}}


@pytest.mark.parametrize("change", [{"containers": [{"image": "i"}]}, {"$patch": "explode"}, {"$retainKeys": 5}])
def test_a_patch_that_cannot_be_followed_is_reported(change: JSON) -> None:
    with pytest.raises(patch.PatchError):
        patch.strategic(of({"containers": [{"name": "a"}]}), of(change), POD)
