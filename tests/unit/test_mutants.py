"""The changes that `make mutants` makes, and what it leaves alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import engine
from tests.tools.mutants.mutation import Operator, mutations


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
        (Operator.CONDITION, "if a == b: x", []),  # the other comparison is the same change
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
def test_each_operator_makes_its_change_and_no_other(operator: Operator, before: str, after: list[str]) -> None:
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
    ],
)
def test_what_no_test_should_care_for_is_left_alone(source: str) -> None:
    assert changed(source) == []


def test_every_change_of_a_real_module_compiles_and_changes_something() -> None:
    source = Path(engine.__file__).read_text()
    found = mutations(source, "claims/engine.py")
    assert len(found) > 50
    for m in found:
        compile(m.apply(source), m.path, "exec")
        assert m.apply(source) != source


def test_text_that_is_not_ascii_is_cut_at_the_right_place() -> None:
    assert changed("x = {'é': a or b}") == ["x = {'é': (a and b)}"]


def test_a_change_keeps_its_name_when_lines_move_and_others_change() -> None:
    source = "class A:\n    def f(self):\n        if a or b:\n            self.g()\n"
    moved = "import x\n\n\nclass A:\n    def f(self):\n        y = h\n\n        if (a  or\n                b):\n            self.g()\n"
    assert [m.key for m in mutations(source, "a.py")] == [m.key for m in mutations(moved, "a.py")]
    assert "a.py A.f: a or b -> a and b" in [m.key for m in mutations(source, "a.py")]


def test_changes_that_look_alike_in_one_function_have_names_of_their_own() -> None:
    found = [m.key for m in mutations("def f():\n    g()\n    g()\n", "a.py")]
    assert found == ["a.py f: g() -> pass", "a.py f: g() -> pass (number 2)"]


def test_only_tests_that_run_the_changed_statement_can_notice() -> None:
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
    assert lines["1"] == (3, 4, 5, 6)  # a default: whoever runs the function
    assert lines["3"] == (3, 4, 5, 6)  # a constant of the module: whoever uses it
