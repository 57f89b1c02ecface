"""An expression ends at its cost limit, in bounded CPU time, memory and depth.

When only CEL's own cost was counted, each of these expressions took minutes, used gigabytes or raised an unexpected exception.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_devkit.localcluster.apiserver.admission.conditions import holds
from dra_devkit.scheduling import cel
from dra_devkit.scheduling.allocator.faults import AllocationError, AllocationTimeout
from dra_devkit.scheduling.cel.expressions import (
    ADMISSION_VARIABLES,
    MATCH_CONDITIONS_BUDGET,
    Budget,
    CelEnvironment,
    Expression,
)
from packages.devkit.tests.command_runner import Dra
from tests.helpers.allocator import Allocator
from tests.helpers.objects import claim, device_class, pod, slice_of
from tests.tools.tree import ROOT

DEVICE = cel.Device(
    "d.example.com",
    {
        "name": "d",
        "attributes": {"name": {"string": "a" * 64}, "list": {"strings": ["a" * 64] * 64}},
        "capacity": {"memory": {"value": "1e999999999"}, "small": {"value": "1Ki"}},
    },
)
SECONDS = 40  # of CPU time for one evaluation; the slowest takes 2 seconds on an idle machine
BYTES = 300 << 20
GPU = str(ROOT / "drivers/gpu_example")
LONG = '"' + "a" * 8000 + '"'


def with_variables(values: Sequence[tuple[str, str]], body: str) -> str:
    """Returns ``body`` with variables. Each variable may use the previous ones."""
    for name, value in reversed(values):
        body = f"cel.bind({name}, {value}, {body})"
    return body


def repeat_step(first: str, step: str, times: int, body: str) -> str:
    """Returns ``body`` for the result of ``times`` steps from ``first``.

    In a step, # is the previous value; in the body, # is the result.
    """
    names = [f"x{i}" for i in range(times + 1)]
    values = [(names[0], first)] + [(b, step.replace("#", a)) for a, b in itertools.pairwise(names)]
    return with_variables(values, body.replace("#", names[-1]))


def loop(body: str, values: Sequence[tuple[str, str]] = (), times: int = 100_000) -> str:
    return with_variables(values, f"lists.range({times}).all(i, {body})")


TEN = "[" + ",".join("#" * 10) + "]"
TEXT = [("a", LONG)]
EXCEEDING_LIMIT = {
    "a list is doubled": repeat_step("[1]", "#+#", 40, "size(#) > 0"),
    "a text is doubled": repeat_step('"aaaa"', "#+#", 40, "size(#) > 0"),
    "nested lists are compared": repeat_step("[1]", TEN, 12, "# == #"),
    "nested lists are searched": repeat_step("[1]", TEN, 12, "dyn([1]) in #"),
    "nested lists are written": repeat_step("[1]", TEN, 12, '"%s".format([#]) != ""'),
    "nested lists are flattened": with_variables([("a", "lists.range(1000)"), ("b", "a.map(i, a)"), ("c", "a.map(i, b)")], "size(c.flatten().flatten()) > 0"),
    "a text is replaced by itself": repeat_step('"aaaaaaaaaa"', '#.replace("a", #)', 5, "size(#) > 0"),
    "replaced texts are kept": with_variables(TEXT, "size([" + ",".join(["a.replace('a', a)"] * 80) + "]) > 0"),
    "long texts are joined": with_variables([*TEXT, ("l", "lists.range(20000).map(i, a)")], "l.join(a) != ''"),
    "a range is too long": "size(lists.range(9000000000)) > 0",
    "ranges are made in a loop": loop("size(lists.range(100000)) > 0"),
    "a list is mapped": "size(lists.range(900000).map(i, i)) > 0",
    "a map is made": "size(lists.range(900000).transformMap(i, v, v)) > 0",
    "lists are joined in a loop": loop("size(l + l) > 0", [("l", "lists.range(100000)")]),
    "a long list is sorted": with_variables([("l", "lists.range(20000)"), ("m", "l+l+l+l+l+l+l+l+l")], "size((m+m+m).sort()) > 0"),
    "a long list is made distinct": "size(lists.range(300000).distinct()) > 0",
    "long lists are compared as sets": "sets.equivalent(lists.range(300000), lists.range(300000))",
    "a number is written with many digits": "'%.999999999f'.format([1.0]) != ''",
    "numbers are written with many digits": loop("'%.99999f'.format([1.0]) != ''"),
    "a counted pattern matches slowly": loop('!a.matches("' + "(a?){1000}" * 20 + 'b")', TEXT),
    "each step compiles a pattern": loop('!"a".matches("(\\\\pN{50}){5}" + string(i))'),
    "each match searches the rest": loop('size(a.findAll("a(.*b)?")) > 0', TEXT),
    "durations are parsed": loop("duration(a) == duration(a) || true", [("a", '"' + "1" * 8000 + '"')]),
    "formats are checked": loop("!format.dns1123Subdomain().validate(a).hasValue() || true", [("a", '"' + "a." * 4000 + '"')]),
    "time zones are searched": loop("timestamp('2020-01-01T00:00:00Z').getHours('Bad/Zone' + string(i)) == 1 || true"),
    "loops are nested": "lists.range(10000).all(a, lists.range(10000).all(b, true))",
}  # fmt: skip
WITHIN_LIMIT = {
    "keys of a large map are read": loop("m[9999] == 9999", [("m", "lists.range(10000).transformMap(i, v, v)")]),
    "a long constant list is searched": loop("!(i in [" + ",".join(str(10**6 + i) for i in range(1000)) + "])"),
    "a pattern with nested repetition": f'!{LONG}.matches("^(a+)+$b")',
    "quantities with huge exponents": loop('q.add(quantity("1Ki")).asApproximateFloat() > 0.0', [("q", 'device.capacity["d.example.com"].memory')]),
}  # fmt: skip
DEEP = {
    "lists in lists": repeat_step("[1]", "[" * 20 + "#" + "]" * 20, 100, "# == #"),
    "sums": "1" + "+1" * 4000 + " > 0",
    "fields": "device" + ".a" * 4000,
    "parentheses": "(" * 4000,
    "terms": "true" + " && true" * 4000,
}


@pytest.mark.cases(9)
@pytest.mark.parametrize("name", EXCEEDING_LIMIT)
def test_an_expression_with_too_much_effort_ends_at_the_cost_limit(name: str) -> None:
    selector = cel.Selector(EXCEEDING_LIMIT[name])
    started = time.thread_time()
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        selector.matches(DEVICE)
    assert time.thread_time() - started < SECONDS


LARGE = [
    n for n in EXCEEDING_LIMIT if re.search("doubled|written|flattened|replaced|joined|range|mapped|map is|sorted", n)
]


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", LARGE)
def test_an_expression_ends_before_it_uses_much_memory(name: str) -> None:
    selector = cel.Selector(EXCEEDING_LIMIT[name])
    tracemalloc.start()
    try:
        with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
            selector.matches(DEVICE)
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", WITHIN_LIMIT)
def test_an_expression_within_its_limit_ends_in_time(name: str) -> None:
    started = time.thread_time()
    assert cel.Selector(WITHIN_LIMIT[name]).matches(DEVICE)
    assert time.thread_time() - started < SECONDS


@pytest.mark.parametrize("name", DEEP)
def test_an_expression_with_too_deep_nesting_is_rejected(name: str) -> None:
    with pytest.raises(cel.CompileError):
        cel.Selector(DEEP[name])
    with pytest.raises(cel.CompileError):
        Expression(DEEP[name], CelEnvironment(ADMISSION_VARIABLES))


@pytest.mark.parametrize("name", ["a list is doubled", "nested lists are compared", "loops are nested"])
def test_an_expression_of_a_policy_has_the_same_limits(name: str) -> None:
    budget = Budget()
    with pytest.raises(cel.CelError, match="actual cost limit exceeded"):
        Expression(EXCEEDING_LIMIT[name], CelEnvironment(ADMISSION_VARIABLES)).evaluate({}, budget)
    before = budget.remaining
    budget.remaining = -1
    with pytest.raises(cel.CelError, match="running out of cost budget"):
        Expression("true", CelEnvironment(ADMISSION_VARIABLES)).evaluate({}, budget)
    assert before <= Budget().remaining


def test_a_macro_does_not_change_the_lists_that_it_reads() -> None:
    for expression in (
        "cel.bind(l, [1, 2], l.map(i, i + 1) == [2, 3] && l == [1, 2] && l.filter(i, i > 1) == [2] && l == [1, 2])",
        "[1, 2].all(i, [3].map(j, j) == [3])",  # each inner loop starts with the same constant list
        "[1, 2].map(i, [5].map(j, i)) == [[1], [2]]",
        "cel.bind(m, {'a': 1}, m.transformMap(k, v, v + 1) == {'a': 2} && m == {'a': 1})",
        "[1, 2].transformMap(i, v, v) == {0: 1, 1: 2} && [7].transformMap(i, v, v) == {0: 7}",
        "[[1], [2]].map(l, l + [0]) == [[1, 0], [2, 0]]",
        "[1, 1, 2].exists_one(i, i == 2)",
    ):
        assert cel.Selector(expression).matches(DEVICE), expression


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("1 in [1, 2]", True), ("dyn(1.0) in [1, 2]", True), ("dyn(true) in [1]", False), ("dyn(1) in [true]", False), ("'1' in ['1']", True),
        ("dyn(1u) in [1]", True), ("2 in [1]", False), ("{1: 'a'}[1] == 'a'", True), ("{1: 'a'}[dyn(1.0)] == 'a'", True), ("dyn(true) in {1: 'a'}", False),
        ("1 in {1: 'a'}", True), ("2 in {1: 'a'}", False), ("has({'a': 1}.a)", True),
    ],
)  # fmt: skip
def test_members_and_keys_are_compared_by_value_and_a_bool_is_not_a_number(expression: str, holds: bool) -> None:
    assert cel.Selector(expression).matches(DEVICE) is holds


ATTACK = '"' + "a" * 40 + '!".matches("^(a+)+$")'


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (ATTACK, "there is no device of class devices"),  # RE2 needs linear time, so the expression is false
        (EXCEEDING_LIMIT["a list is doubled"], "actual cost limit exceeded"),
        (EXCEEDING_LIMIT["loops are nested"], "too complex, exceeds cost limit"),
        (DEEP["sums"], "expression recursion limit exceeded"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_commands_end_with_costly_expressions(
    command: str, expression: str, reason: str, tmp_path: Path, dra: Dra
) -> None:
    costly_class = device_class()
    costly_class["spec"]["selectors"] = [{"cel": {"expression": expression}}]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1", "labels": {"kubernetes.io/hostname": "node-1"}},
    }
    waiting_pod = pod("waits", claims=["c"])
    waiting_pod["metadata"]["namespace"] = "default"
    claim_object = claim("c")
    claim_object["metadata"]["namespace"] = "default"
    objects = [costly_class, claim_object, waiting_pod]
    arguments = [command, "-f", str(tmp_path / "cluster.json")]
    if command == "explain":
        objects += [node, slice_of("node-1", [f"d{i}" for i in range(8)])]
    else:
        arguments += ["--host", "virtual-machine=2", "--driver", GPU]
    (tmp_path / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    started = time.process_time()
    printed = dra(*arguments, code=None)
    assert time.process_time() - started < 4 * SECONDS
    assert printed.code in {1, 2} and reason in printed.out + printed.err


def test_the_local_schedulers_search_ends_with_the_expression() -> None:
    node = {"metadata": {"name": "node-1", "labels": {}}}
    devices = slice_of("node-1", [f"d{i}" for i in range(8)])
    for expression, message in ((ATTACK, None), (EXCEEDING_LIMIT["loops are nested"], "actual cost limit exceeded")):
        costly_class = device_class()
        costly_class["spec"]["selectors"] = [{"cel": {"expression": expression}}]
        allocator = Allocator([devices], [costly_class], [])
        if message is None:
            assert allocator.allocate(node, [claim("c")]) is None
            continue
        with pytest.raises(AllocationError, match=message):
            allocator.allocate(node, [claim("c")])


@pytest.mark.full
def test_a_search_checks_its_time_limit_before_each_expression() -> None:
    """The scheduler's Filter has a limit of ten seconds, and one expression may take two seconds. Without the check, 64 took minutes."""
    node = {"metadata": {"name": "node-1", "labels": {}}}
    slow = device_class()
    slow["spec"]["selectors"] = [{"cel": {"expression": f"!({WITHIN_LIMIT['keys of a large map are read']})"}}]
    devices = slice_of("node-1", [f"d{i}" for i in range(60)])
    started = time.thread_time()
    with pytest.raises(AllocationTimeout):
        Allocator([devices], [slow], [], time_limit=0.2).allocate(node, [claim("c")])
    assert time.thread_time() - started < SECONDS


variables = st.sampled_from(["l", "m", "s", "n"])
operations = st.sampled_from(
    [
        "l + l", "m + l", "[l, m]", "[l]", "l.map(i, l)", "l.map(i, i)", "l.filter(i, true)", "l.reverse()", "m.flatten()", "l.sort()",
        "l.distinct()", "s.split('')", "lists.range(n)", "lists.range(size(l))", "[s, s, s]", "l.transformList(i, v, v)", "s.findAll('a|b')",
        "l.slice(0, size(l))", "m",
    ]
)  # fmt: skip
texts = st.sampled_from(
    ["s + s", "s.replace('a', s)", "s.replace('', s)", "[s, s].join(s)", "'%s'.format([l])", "'%.50f%s'.format([1.5, s])", "s.upperAscii()",
     "strings.quote(s)", "s.find('(a|b)*a')", "s.substring(0, size(s))", "string(n)"]
)  # fmt: skip
numbers = st.sampled_from(
    [
        "size(l)",
        "size(s)",
        "n * n",
        "n + 1000",
        "l.indexOf(l)",
        "s.indexOf('b') + 2",
        "int('9' + string(n))",
        "quantity(string(n) + 'e9').asInteger()",
    ]
)
ends = st.sampled_from(
    ["l == m", "l in m", "m.all(x, l == m)", "s.matches('^(a+)+$')", "lists.range(n).all(x, l == m || true)", "sets.contains(l, m)",
     "lists.range(n).exists(x, s.matches('(a|b)*b' + string(x)))", "s == s + s", "l.isSorted()", "size(m) == n"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(variables, operations, texts, numbers), min_size=1, max_size=12), ends)
def test_no_combination_of_functions_takes_long(steps: list[tuple[str, str, str, str]], end: str) -> None:
    values = [("l", "[dyn(1), dyn(2), dyn(3)]"), ("m", "[dyn(1)]"), ("s", "'aaaa'"), ("n", "10")]
    for name, list_operation, text, number in steps:
        values.append((name, {"l": list_operation, "m": list_operation, "s": text, "n": number}[name]))
    try:
        selector = cel.Selector(with_variables(values, end))
    except cel.CompileError:
        return
    started = time.thread_time()
    try:
        selector.matches(DEVICE)
    except cel.CelError:
        pass
    assert time.thread_time() - started < SECONDS


def test_an_expression_above_the_policy_budget_fails_with_all_later_expressions() -> None:
    environment = CelEnvironment(ADMISSION_VARIABLES)
    costly = Expression("lists.range(100000).all(i, true)", environment)
    budget = Budget()
    costly.evaluate({}, budget)
    cost = Budget().remaining - budget.remaining
    small_budget = Budget(2 * cost - 1)
    costly.evaluate({}, small_budget)
    for expression in (costly, Expression("true", environment)):
        with pytest.raises(cel.CelError, match="running out of cost budget, no further validation rules will be run"):
            expression.evaluate({}, small_budget)


@pytest.mark.full
def test_match_conditions_have_a_quarter_of_the_budget_of_validations() -> None:
    environment = CelEnvironment(ADMISSION_VARIABLES)
    costly = Expression("lists.range(100000).all(i, true)", environment)
    budget = Budget()
    costly.evaluate({}, budget)
    affordable = MATCH_CONDITIONS_BUDGET // (Budget().remaining - budget.remaining)
    assert holds({str(i): costly for i in range(affordable)}, {})
    with pytest.raises(cel.CelError, match="running out of cost budget"):
        holds({str(i): costly for i in range(affordable + 1)}, {})
