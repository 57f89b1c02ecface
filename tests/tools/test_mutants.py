"""`make mutants` makes the intended changes, selects the right tests, and reports the undetected changes."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import inflight
from tests.tools.mutants.__main__ import REVIEWED, draw, report, reviewed
from tests.tools.mutants.mutation import Mutation, Operator, mutations
from tests.tools.mutants.runs import ROOT, Baseline, Outcome, Result


def changed(source: str, operator: Operator | None = None) -> list[str]:
    text = textwrap.dedent(source)
    return [m.apply(text) for m in mutations(text) if operator in {None, m.operator}]


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        (Operator.CONDITION, "if a: f = 1", ["if (not a): f = 1"]),
        (Operator.CONDITION, "while a < b: x", ["while (not a < b): x"]),
        (Operator.CONDITION, "x = a if b else c", ["x = a if (not b) else c"]),
        (Operator.CONDITION, "x = [a for a in b if a.c]", ["x = [a for a in b if (not a.c)]"]),
        (Operator.CONDITION, "if a == b: x", []),  # The operator COMPARISON makes the same change.
        (Operator.CONDITION, "while True: x", []),
        (Operator.NOT, "x = not a", ["x = (a)"]),
        (Operator.JUNCTION, "x = a and b and c", ["x = (a or b or c)"]),
        (Operator.JUNCTION, "x = a or b", ["x = (a and b)"]),
        (Operator.COMPARISON, "x = a < b", ["x = (a <= b)"]),
        (Operator.COMPARISON, "x = a <= b <= c", ["x = (a < b <= c)", "x = (a <= b < c)"]),
        (Operator.COMPARISON, "x = a is not None", ["x = (a is None)"]),
        (Operator.COMPARISON, "x = a not in b", ["x = (a in b)"]),
        (Operator.CALL, "f(a)", ["pass"]),
        (Operator.CALL, "async def f():\n    await g(a)\n", ["async def f():\n    pass\n"]),
        (Operator.CALL, "x = f(a)", []),
        (Operator.CONSTANT, "x = f(y=True)", ["x = f(y=False)"]),
        (Operator.NUMBER, "x = a[0]", ["x = a[1]"]),
        (Operator.NUMBER, "x = 0.5", []),
        (Operator.EXCEPT, "try: f\nexcept E:\n    a = 1\n    raise\n", ["try: f\nexcept E:\n    pass\n"]),
        (Operator.EXCEPT, "try: f\nexcept E:\n    pass\n", []),
        (Operator.EXCEPT, "try: f\nexcept E:\n    log.exception('x')\n", []),
        (Operator.DEFAULT, "def f(a='b', *, c='d'): return", ["a='b-other', *, c='d'", "a='b', *, c='d-other'"]),
        (Operator.NUMBER, "def f(a=1): return", ["def f(a=2): return"]),
        (Operator.LOOP, "for a in b:\n    break\n", ["for a in b:\n    continue\n"]),
        (Operator.LOOP, "for a in b:\n    continue\n", ["for a in b:\n    break\n"]),
    ],
)
def test_each_operator_makes_only_its_own_change(operator: Operator, before: str, after: list[str]) -> None:
    found = changed(before, operator)
    assert len(found) == len(after), found
    assert all(want in have for want, have in zip(after, found, strict=True)), found


@pytest.mark.parametrize(
    "source",
    [
        '"""Not a or b, 1."""',
        'def f():\n    """If not True."""\n',
        "x: Literal[1, True]",
        "def f(a: Literal[1]) -> Literal[2]: return",
        "Kinds = Literal[1, 2]",
        "@dataclass(frozen=True)\nclass A: x",
        "log.info('%d', 1 if a else 2)",
        "self._log.info('%d', a or b)",
        "assert a and b, 1",
        "x = f'{a or 1}'",
        "if TYPE_CHECKING:\n    x = 1\n",
        "if typing.TYPE_CHECKING:\n    f()\n",
        "if __name__ == '__main__':\n    main()\n",
        "def f():\n    try:\n        return g\n    except E:\n        return None\n",
    ],
)
def test_code_that_tests_should_not_depend_on_is_not_changed(source: str) -> None:
    assert changed(source) == []


def test_every_change_of_a_real_module_compiles_and_differs_from_the_source() -> None:
    source = Path(inflight.__file__).read_text()
    found = mutations(source, "claims/inflight.py")
    assert len(found) > 10
    for m in found:
        compile(m.apply(source), m.path, "exec")
        assert m.apply(source) != source


def test_a_change_after_non_ascii_text_is_at_the_right_place() -> None:
    assert changed("x = {'é': a or b}") == ["x = {'é': (a and b)}"]


def test_the_name_of_a_change_is_the_same_after_other_edits() -> None:
    source = "class A:\n    def f(self):\n        if a or b:\n            self.g()\n"
    moved = "import x\n\n\nclass A:\n    def f(self):\n        y = h\n\n        if (a  or\n                b):\n            self.g()\n"
    assert [m.key for m in mutations(source, "a.py")] == [m.key for m in mutations(moved, "a.py")]
    assert "a.py A.f: a or b -> a and b" in [m.key for m in mutations(source, "a.py")]


def test_equal_changes_in_one_function_have_different_names() -> None:
    found = [m.key for m in mutations("def f():\n    g()\n    g()\n", "a.py")]
    assert found == ["a.py f: g() -> pass", "a.py f: g() -> pass (number 2)"]


def test_a_change_has_the_lines_that_a_detecting_test_must_run() -> None:
    source = textwrap.dedent(
        """\
        LIMIT = 3
        def f(a=1):
            if (a or
                    b):
                return LIMIT
            g()
        def h():
            return 0
        """
    )
    lines = {m.before: m.lines for m in mutations(source)}
    assert lines["a or b"] == (3, 4)
    assert lines["g()"] == (6,)
    assert lines["1"] == (3, 4, 5, 6)  # a default: the lines of the function
    assert lines["3"] == (3, 4, 5, 6)  # a constant of the module: the lines of the functions that use it


# --- the selection of tests ---------------------------------------------------------------------------


def mutation(source: str, n: int = 0) -> Mutation:
    return mutations(source, "claims/a.py")[n]


def test_the_fastest_test_of_the_line_runs_first() -> None:
    baseline = Baseline({"slow": 3.0, "quick": 0.1, "other": 0.01}, {"claims/a.py:2": ["slow", "quick"]}, {})
    assert baseline.tests(mutation("def f():\n    g()\n")) == ["quick", "slow"]


def test_tests_of_the_changed_module_run_before_all_others() -> None:
    own = ["tests/claims/test_a.py::t", "tests/claims/test_a_topic.py::t"]
    others = ["tests/claims/test_b.py::t", "tests/plugin/test_a.py::t"]
    seconds = dict(zip([*others, *own], (0.1, 0.2, 8.0, 9.0), strict=True))
    baseline = Baseline(seconds, {"claims/a.py:2": [*others, *own]}, {})
    assert baseline.tests(mutation("def f():\n    g()\n")) == own + others


def test_an_unused_constant_is_tested_by_all_tests_of_the_subpackage() -> None:
    baseline = Baseline({"a": 1.0, "b": 2.0}, {"claims/b.py:2": ["a"], "kube/b.py:2": ["b"]}, {})
    assert baseline.tests(mutation("LIMIT = 1\n")) == ["a"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`make mutants` needs Python 3.12")
def test_the_tracer_records_the_lines_of_each_test_also_in_threads(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "__init__.py").write_text("def f(a):\n    if a:\n        return 1\n    return 0\n")
    script = textwrap.dedent(
        f"""\
        import threading, p
        from tests.tools.mutants.tracing import Tracer
        tracer = Tracer({str(package) + "/"!r})
        for run in (lambda: p.f(0), lambda: (t := threading.Thread(target=p.f, args=(1,))).start() or t.join(), lambda: p.f(0)):
            tracer.restart()
            run()
            print(*tracer.lines())
        tracer.restart()
        tracer.close()
        p.f(1)
        print(*tracer.lines())
        """
    )
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
    quick, thread = "__init__.py:2 __init__.py:4", "__init__.py:2 __init__.py:3"
    assert done.stdout.splitlines() == [quick, thread, quick, ""]


# --- the sample and the report --------------------------------------------------------------------------

SOURCE = "def f():\n    if a and b:\n        g()\n    h(0, 1)\n"


def test_the_sample_of_a_seed_loses_only_the_edited_changes() -> None:
    before, after = mutations(SOURCE, "a.py"), mutations(SOURCE.replace("h(0, 1)", "h(0, 2)"), "a.py")
    assert [m.key for m in draw(before, 7, 3)] == [m.key for m in draw(list(reversed(before)), 7, 3)]
    assert {m.key for m in draw(before, 7, 99)} - {m.key for m in draw(after, 7, 99)} == {
        "a.py f: 1 -> 2",
        "a.py f: h(0, 1) -> pass",
    }


def test_the_report_contains_each_undetected_change_with_its_line_and_reason() -> None:
    found = mutations(SOURCE, "claims/a.py")
    results = {m.key: Result(Outcome.SURVIVED if m.before == "g()" else Outcome.DETECTED, "", 1, 2) for m in found}
    text = report(found, results, {"claims/a.py f: g() -> pass": "because."})
    assert "claims/a.py:3 f (dropped call; 1 of 2 tests)\n    g() -> pass\n    because.\n" in text
    assert re.search(r"^claims +5 +6 +83\.3$", text, re.M)


def test_the_reviewed_list_can_be_read_and_every_entry_has_a_reason() -> None:
    equivalent, accepted = reviewed(REVIEWED)
    assert all(why.strip() for why in (equivalent | accepted).values())
    assert not equivalent.keys() & accepted.keys()
