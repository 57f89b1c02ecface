"""Objects from files may be malformed. The analysis returns a result or raises a QuestionError with one sentence."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.commands.style import Style
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.errors import QuestionError
from dra_tools import Snapshot, explain, simulate, waiting
from dra_tools.commands.explain_text import text
from packages.tools.tests.explanation.test_explain import OBSTACLES
from packages.tools.tests.objects import TEMPLATE, cluster, workload

CASES = [c[0] for c in OBSTACLES.values()]
MALFORMED_VALUES = st.sampled_from(
    [None, 0, -1, "", "x", [], {}, [None], [{}], {"x": None}, True, 2**70, "1e999", ["a", 1]]
)


def value_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the paths to all nested values."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += value_paths(inner, (*path, key))
    return found


def malformed_copy(objects: list[JSON], data: st.DataObject) -> list[JSON]:
    """Returns a copy with one nested value replaced or deleted."""
    changed = copy.deepcopy(objects)
    *parents, last = data.draw(st.sampled_from(value_paths(changed)))
    parent: Any = changed
    for key in parents:
        parent = parent[key]
    if data.draw(st.booleans()):
        parent[last] = data.draw(MALFORMED_VALUES)
    else:
        del parent[last]
    return changed


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_explain_of_malformed_objects_returns_a_result_or_raises_one_sentence(
    objects: list[JSON], data: st.DataObject
) -> None:
    try:
        snapshot = Snapshot.of(malformed_copy(objects, data))
        text(explain(snapshot, "p"), Style(coloured=False))
        waiting(snapshot)
    except QuestionError as e:
        assert "\n" not in str(e)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["Deployment", "Job", "DaemonSet", "Pod"]), st.data())
def test_simulate_of_malformed_objects_returns_a_result_or_raises_one_sentence(kind: str, data: st.DataObject) -> None:
    manifest = workload(kind, replicas=3)
    if kind == "Pod":
        manifest["spec"] = manifest["spec"]["template"]["spec"]
    objects = malformed_copy([*cluster(), TEMPLATE, manifest], data)
    cluster_size = len(cluster())
    try:
        simulate(Snapshot.of(objects[:cluster_size]), objects[cluster_size:], fill=True)
    except QuestionError as e:
        assert "\n" not in str(e)


POD: JSON = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": None},
    "spec": {
        "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "d"}]}}],
        "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "t"}],
    },
}


def test_an_empty_namespace_is_the_default_namespace() -> None:
    template = {**copy.deepcopy(TEMPLATE), "metadata": {"name": "t", "namespace": None}}
    assert [e.subject for e in waiting(Snapshot.of([POD, template]))] == ["pod default/p"]
    assert simulate(Snapshot.of([*cluster(), template]), [workload("Deployment")]).fits


def test_simulate_shows_an_amount_beyond_the_range_of_floats() -> None:
    large = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"zz": "9" * 400}}}]}
    (fit,) = simulate(Snapshot.of(cluster()), [TEMPLATE, workload("Deployment", spec=large)]).workloads
    assert fit.stopped is not None
    assert "1.000e+400" in "\n".join(text(fit.stopped, Style(coloured=False)))
