"""ObjectDecoder decodes objects with the fields that the analysis reads. It decodes an object of another form completely."""

from __future__ import annotations

import json

import msgspec
import pytest

from dra_devkit.schemas import shapes
from dra_devkit.schemas.shapes import Struct
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.resource import CLAIMS, NODES, PODS, SLICES
from dra_tools.encoded_objects import ObjectDecoder
from dra_tools.snapshot import Snapshot
from dra_tools.unevaluated.objects import all_not_evaluated

META = {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "1", "managedFields": [{"manager": "m"}]}
USED = {"resourceClaimName": "c", "mapping": [{"name": "cpu", "quantity": "1"}]}
POD = {
    "metadata": META,
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "main", "env": [{"name": "A"}], "resources": {"requests": {"cpu": "1"}}}],
        "volumes": [{"name": "v"}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready"}], "nodeAllocatableResourceClaimStatuses": [USED]},
}


def decode_object(resource: Resource, obj: JSON, attributes: frozenset[str] | None = None) -> JSON:
    return ObjectDecoder(resource, attributes).decode(msgspec.Raw(json.dumps(obj).encode()))


def test_a_running_pod_is_decoded_with_only_its_node_and_resources() -> None:
    found = decode_object(PODS, POD)
    assert found == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running", "nodeAllocatableResourceClaimStatuses": [USED]},
    }


@pytest.mark.parametrize(
    "change", [{"status": {"phase": "Pending"}}, {"metadata": {**META, "deletionTimestamp": "now"}}, {"status": None}]
)
def test_a_waiting_or_deleted_pod_is_decoded_completely(change: JSON) -> None:
    found = decode_object(PODS, POD | change)
    assert found["spec"] == POD["spec"]
    assert "managedFields" not in found["metadata"]


def test_a_node_is_decoded_with_only_the_resources_of_its_status() -> None:
    obj = {"metadata": META, "spec": {"taints": []}, "status": {"allocatable": {"cpu": "8"}, "images": [{"names": []}]}}
    found = decode_object(NODES, obj)
    assert (found["spec"], found["status"]) == ({"taints": []}, {"allocatable": {"cpu": "8"}})


def test_an_allocated_claim_is_decoded_without_its_parameters() -> None:
    result = {"request": "r", "driver": "d", "pool": "p", "device": "x", "shareID": "s"}
    allocation = {
        "devices": {"results": [result], "config": [{"opaque": {}}]},
        "nodeSelector": {"nodeSelectorTerms": []},
    }
    found = decode_object(CLAIMS, {"metadata": META, "spec": {"devices": {}}, "status": {"allocation": allocation}})
    assert found["status"]["allocation"] == {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": []},
    }


def test_a_device_is_decoded_with_only_the_requested_attributes_and_all_other_fields() -> None:
    device_type = shapes.named("resource.v1.Device")
    assert isinstance(device_type, Struct)
    device: JSON = dict.fromkeys(device_type.fields, "value") | {
        "name": "d",
        "attributes": {"a": {"int": 1}, "b": {"int": 2}},
    }
    obj = {"metadata": META, "spec": {"driver": "d", "devices": [device]}}
    [found] = decode_object(SLICES, obj, frozenset({"a"}))["spec"]["devices"]
    assert found == device | {"attributes": {"a": {"int": 1}}}


def test_a_field_of_a_later_release_is_kept_and_named() -> None:
    device = {"name": "d", "attributes": {"a": {"int": 1}}, "later": 1}
    spec = {"driver": "d", "pool": {"name": "p", "resourceSliceCount": 1}, "devices": [device], "laterToo": True}
    found = decode_object(SLICES, {"metadata": META, "spec": spec}, frozenset({"b"}))
    [part] = all_not_evaluated(Snapshot.by_plural({SLICES.plural: [found]}, live=True))
    assert "spec.devices[0].later, which is not known here" in part.why and "spec.laterToo" in part.why


@pytest.mark.parametrize("spec", [{"containers": "none"}, {}, {"containers": [{"name": "\ud800"}]}])
def test_an_object_of_another_form_is_decoded_completely(spec: JSON) -> None:
    assert decode_object(PODS, {**POD, "spec": spec})["spec"].keys() == spec.keys()


def test_a_value_that_is_no_object_raises_an_error() -> None:
    with pytest.raises(ApiError):
        ObjectDecoder(PODS).decode(msgspec.Raw(b"[1]"))


def test_an_older_version_is_converted() -> None:
    older = Resource(SLICES.group, "v1beta1", SLICES.plural)
    obj = {
        "metadata": META,
        "spec": {
            "driver": "d",
            "pool": {"name": "p"},
            "devices": [{"name": "x", "basic": {"attributes": {"a": {"int": 1}}}}],
        },
    }
    [device] = decode_object(older, obj, frozenset({"b"}))["spec"]["devices"]
    assert device["attributes"] == {"a": {"int": 1}}
