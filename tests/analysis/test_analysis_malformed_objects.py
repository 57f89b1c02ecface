"""Objects from files may be anything: a question about them is answered, or refused with a sentence."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin.analysis import Snapshot, explain, simulate, waiting
from dra_kubeletplugin.cli.explain_text import text
from dra_kubeletplugin.cli.shell.style import Style
from dra_kubeletplugin.errors import QuestionError
from tests.analysis.explanation.test_explain import OBSTACLES
from tests.analysis.simulation.test_simulate import TEMPLATE, cluster, workload

JSON = dict[str, Any]
CASES = [c[0] for c in OBSTACLES.values()]
ODD = st.sampled_from([None, 0, -1, "", "x", [], {}, [None], [{}], {"x": None}, True, 2**70, "1e999", ["a", 1]])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything inside."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def broken(objects: list[JSON], data: st.DataObject) -> list[JSON]:
    """With one thing in them that is something else, or is gone."""
    changed = copy.deepcopy(objects)
    *way, last = data.draw(st.sampled_from(places(changed)))
    at: Any = changed
    for key in way:
        at = at[key]
    if data.draw(st.booleans()):
        at[last] = data.draw(ODD)
    else:
        del at[last]
    return changed


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_an_explanation_is_one_or_a_sentence(objects: list[JSON], data: st.DataObject) -> None:
    try:
        snapshot = Snapshot.of(broken(objects, data))
        text(explain(snapshot, "p"), Style(coloured=False))
        waiting(snapshot)
    except QuestionError as e:
        assert "\n" not in str(e)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["Deployment", "Job", "DaemonSet", "Pod"]), st.data())
def test_a_simulation_is_one_or_a_sentence(kind: str, data: st.DataObject) -> None:
    made = workload(kind, replicas=3)
    if kind == "Pod":
        made["spec"] = made["spec"]["template"]["spec"]
    objects = broken([*cluster(), TEMPLATE, made], data)
    number = len(cluster())
    try:
        simulate(Snapshot.of(objects[:number]), objects[number:], fill=True)
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


def test_an_amount_that_no_float_can_hold_is_shown() -> None:
    large = {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"zz": "9" * 400}}}]}
    (fit,) = simulate(Snapshot.of(cluster()), [TEMPLATE, workload("Deployment", spec=large)]).workloads
    assert fit.stopped is not None
    assert "1.000e+400" in "\n".join(text(fit.stopped, Style(coloured=False)))
