"""`make mutants` makes the intended changes, selects the right tests, and reports the undetected changes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dra_kubeletplugin.claims import inflight
from tests.tools.mutants.__main__ import ROOT, Recorded
from tests.tools.mutants.changes import Change, changes


def changed(source: str) -> list[str]:
    return [c.apply(source) for c in changes(source)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if a: f", ["if (not (a)): f"]),
        ("x = a if b else c", ["x = a if (not (b)) else c"]),
        ("if a == b: x", ["if (a != b): x"]),
        ("while True: x", ["while False: x"]),
        ("x = not a", ["x = (a)"]),
        ("x = 'é' or a and b", ["x = ('é' and (a and b))", "x = 'é' or (a or b)"]),
        ("x = a <= b", ["x = (a < b)"]),
        ("x = a is not None", ["x = (a is None)"]),
        ("x = a not in b", ["x = (a in b)"]),
        ("f(a)", ["pass"]),
        ("async def f():\n    await g(a)", ["async def f():\n    pass"]),
        ("x = f(y=True)", ["x = f(y=False)"]),
        ("x = a[0]", ["x = a[1]"]),
        ("try: f\nexcept E:\n    a = b\n    raise", ["try: f\nexcept E:\n    pass"]),
        ("for a in b:\n    break", ["for a in b:\n    continue"]),
        ("for a in b:\n    continue", ["for a in b:\n    break"]),
    ],
)
def test_each_kind_of_change_changes_only_its_part(before: str, after: list[str]) -> None:
    assert changed(before) == after


@pytest.mark.parametrize(
    "source",
    [
        '"""Not a or b, 1."""',
        "x: Literal[1, True]",
        "def f(a: Literal[1]) -> Literal[2]: return",
        "@dataclass(frozen=True)\nclass A: x",
        "class A(Struct, frozen=True): x",
        "log.info('%d', 1 if a else 2)",
        "self._log.info('%d', a or b)",
        "try: f\nexcept E:\n    log.exception('x')",
        "assert a and b, 1",
        "x = f'{a or 1}' + 0.5",
        "if TYPE_CHECKING:\n    x = 1",
        "if __name__ == '__main__':\n    main()",
    ],
)
def test_code_that_tests_should_not_depend_on_is_not_changed(source: str) -> None:
    assert changed(source) == []


def test_every_change_of_a_real_module_compiles_and_differs_from_the_source() -> None:
    source = Path(inflight.__file__).read_text()
    found = changed(source)
    assert len(found) > 10
    for text in found:
        compile(text, "inflight.py", "exec")
        assert text != source


def test_the_fastest_tests_of_the_changed_line_run_as_long_as_they_have_time() -> None:
    recorded = Recorded({"slow": 3.0, "quick": 0.1, "other": 0.01}, {"a.py:2": {"slow", "quick"}, "a.py:7": {"other"}})
    in_function, in_module = Change(2, "", "", 0, 0), Change(0, "", "", 0, 0)
    assert recorded.tests("a.py", in_function, 20) == ["quick", "slow"]
    assert recorded.tests("a.py", in_function, 1) == ["quick"]
    assert recorded.tests("a.py", in_module, 20) == ["other", "quick", "slow"]
    assert recorded.tests("b.py", in_function, 20) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="`make mutants` needs Python 3.12")
@pytest.mark.full
def test_a_change_is_detected_by_a_test_that_fails_or_hangs_and_not_by_a_test_that_only_runs_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "tests/tools").mkdir(parents=True)
    (tree / "tests/tools/mutants").symlink_to(ROOT / "tests/tools/mutants")
    package = tree / "src/dra_kubeletplugin/claims"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(
        textwrap.dedent(
            """\
            def f(a):
                return a or None

            def unused(a):
                return a or None
            """
        )
    )
    for name, test in {"good": "assert f(1) == 1", "weak": "f(0)"}.items():
        (tree / f"tests/test_{name}.py").write_text(f"from dra_kubeletplugin.claims import f\ndef test_it(): {test}\n")
    (tree / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["full", "crash"]\n')
    for tests, code, line in (("tests/test_good.py", 1, 5), ("tests/test_weak.py", 1, 2)):
        command = [sys.executable, "-m", "tests.tools.mutants", "--tests", tests, "--workers", "1"]
        done = subprocess.run(
            command, cwd=tree, env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, f"claims/__init__.py:{line}: a or None" in done.stdout) == (code, True), done
