"""Formats the report of a run: text for a terminal, JUnit XML, JSON, and Markdown with a badge."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from dra_kubeletplugin.cli.shell.output import encoded

from .catalogue import Requirement
from .runner import CheckOutcome, ConformanceRun, OutcomeStatus
from .transcript import TranscriptEntry

FORMS = ("junit", "json", "markdown")
_MARKS = {
    OutcomeStatus.PASSED: "ok",
    OutcomeStatus.FAILED: "FAIL",
    OutcomeStatus.SKIPPED: "skip",
    OutcomeStatus.NOT_APPLICABLE: "n/a",
    OutcomeStatus.XFAILED: "xfail",
}
_SHOWN = 12  # maximum number of transcript entries on a terminal


def conformance_report(run: ConformanceRun, form: str) -> str:
    """Returns the report in one of the :data:`FORMS`."""
    if form == "json":
        return encoded(run, "json", unicode=False)
    return _junit(run) if form == "junit" else _markdown(run)


# --- terminal -------------------------------------------------------------------------------------


def progress_line(outcome: CheckOutcome) -> str:
    """Returns the line of one check."""
    check = outcome.check
    line = f"{_MARKS[outcome.status]:<5} {check.id}  {check.level:<6} {check.text}  ({outcome.seconds:.1f} s)"
    if outcome.status in {OutcomeStatus.SKIPPED, OutcomeStatus.NOT_APPLICABLE}:
        line += f"\n              {outcome.status}: {outcome.reason}"
    return "\n".join([line, *(f"              {figure}" for figure in outcome.figures)])


def failure_lines(outcome: CheckOutcome) -> Iterator[str]:
    """Yields the details of a failed check, with the last calls."""
    yield from _facts(outcome)
    if outcome.transcript:
        yield f"  transcript (the last {min(len(outcome.transcript), _SHOWN)} of {len(outcome.transcript)} entries):"
        yield from (f"    {_entry_line(e)}" for e in outcome.transcript[-_SHOWN:])


def _facts(outcome: CheckOutcome) -> Iterator[str]:
    check = outcome.check
    yield f"  expected:    {outcome.expected}"
    first, *rest = outcome.got.splitlines() or [""]
    yield f"  got:         {first}"
    yield from (f"               {line}" for line in rest)
    yield f"  consequence: {check.consequence}"
    yield f"  source:      {check.source}"
    if outcome.reason:
        yield f"  profile:     a failure is expected: {outcome.reason}"


def _entry_line(entry: TranscriptEntry) -> str:
    return f"{entry.at:8.3f} s  {entry.kind:<6} {entry.summary}"


def _call_lines(outcome: CheckOutcome) -> Iterator[str]:
    """Yields all calls of a failed check with their requests and responses."""
    for entry in outcome.transcript:
        yield _entry_line(entry)
        for title, text in (("request", entry.request), ("response", entry.response)):
            if text:
                yield f"    {title}:"
                yield textwrap.indent(text, " " * 6)


def summary_line(run: ConformanceRun) -> str:
    """Returns the last line of a run."""
    if not run.outcomes:
        return f"{run.driver or 'the driver'}: no check ran, in {run.seconds:.0f} s"
    passed = {level: run.count(OutcomeStatus.PASSED, level) for level in Requirement}
    levels = ", ".join(f"{count} {level}" for level, count in passed.items() if count)
    counts = [f"{sum(passed.values())} passed" + (f" ({levels})" if levels else "")]
    for level in Requirement:
        if failed := run.failed(level):
            counts.append(f"{len(failed)} {level} failed ({', '.join(failed)})")
    for status in (OutcomeStatus.SKIPPED, OutcomeStatus.NOT_APPLICABLE, OutcomeStatus.XFAILED):
        if count := run.count(status):
            counts.append(f"{count} {status}")
    return f"{run.driver or 'the driver'}: {', '.join(counts)}, in {run.seconds:.0f} s"


def transcript_text(outcome: CheckOutcome) -> str:
    """Returns the content of the file about a failed check: the failure, all calls, and the output of the driver."""
    title = f"{outcome.check.id}: {outcome.check.text}"
    calls = list(_call_lines(outcome)) or ["(no calls)"]
    return "\n".join([title, *_facts(outcome), "", "Calls:", *calls, "", "Output of the driver:", outcome.log, ""])


# --- files ----------------------------------------------------------------------------------------


def _junit(run: ConformanceRun) -> str:
    failed, passed = run.count(OutcomeStatus.FAILED), run.count(OutcomeStatus.PASSED)
    counts = {
        "tests": len(run.outcomes),
        "failures": failed,
        "skipped": len(run.outcomes) - failed - passed,
        "errors": int(bool(run.fault)),
        "time": f"{run.seconds:.1f}",
    }
    name = quoteattr(f"dra conformance: {run.driver}")
    head = f"<testsuite name={name} {' '.join(f'{k}={quoteattr(str(v))}' for k, v in counts.items())}>"
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', head]
    for outcome in run.outcomes:
        check = outcome.check
        case = f"<testcase classname={quoteattr(check.group)} name={quoteattr(f'{check.id} {check.text}')}"
        case += f' time="{outcome.seconds:.3f}">'
        lines.append(case + "".join(_junit_details(outcome)) + "</testcase>")
    if run.fault:
        fault = f"<error message={quoteattr(_xml_text(run.fault))}/>"
        lines.append(f'<testcase classname="run" name="the driver is ready">{fault}</testcase>')
    return "\n".join([*lines, "</testsuite>", ""])


def _junit_details(outcome: CheckOutcome) -> Iterator[str]:
    if outcome.status is OutcomeStatus.FAILED:
        message = quoteattr(_xml_text(f"expected {outcome.expected}; got {outcome.got}"))
        yield f"<failure type={quoteattr(outcome.check.level)} message={message}>"
        yield escape(_xml_text("\n".join(failure_lines(outcome)))) + "</failure>"
        yield f"<system-out>{escape(_xml_text(chr(10).join(_call_lines(outcome))))}</system-out>"
        yield f"<system-err>{escape(_xml_text(outcome.log))}</system-err>"
    elif outcome.status is not OutcomeStatus.PASSED:
        yield f"<skipped message={quoteattr(_xml_text(f'{outcome.status}: {outcome.reason}'))}/>"


def _xml_text(text: str) -> str:
    """Returns the text without characters that XML 1.0 does not allow."""
    return re.sub("[\0-\x08\x0b-\x1f\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", text)


def badge(run: ConformanceRun) -> str:
    """Returns the URL of a badge."""
    failed = len(run.failed(Requirement.MUST))
    text = "not%20ready" if run.fault and not run.outcomes else f"{failed}%20MUST%20failed" if failed else "passed"
    color = "red" if failed or run.fault else "yellow" if run.failed(Requirement.SHOULD) else "brightgreen"
    return f"https://img.shields.io/badge/DRA%20conformance-{text}-{color}"


def _markdown(run: ConformanceRun) -> str:
    lines = [f"# DRA conformance of {run.driver or 'a driver'}", "", f"![DRA conformance]({badge(run)})", ""]
    lines += [summary_line(run), "", *_markdown_failures(run), "| id | level | result | check |", "|---|---|---|---|"]
    for outcome in run.outcomes:
        why = outcome.got if outcome.status is OutcomeStatus.FAILED else outcome.reason
        note = f"<br>{_cell(why)}" if why else ""
        check = outcome.check
        lines.append(f"| {check.id} | {check.level} | {outcome.status} | {_cell(check.text)}{note} |")
    if run.fault:
        lines += ["", f"The run ended early: {_cell(run.fault)}"]
    return "\n".join([*lines, ""])


def _markdown_failures(run: ConformanceRun) -> Iterator[str]:
    """Yields a table of the failed checks.

    It contains what was expected and what was observed, because the summary of a CI job does not show the terminal's output.
    """
    failed = [o for o in run.outcomes if o.status is OutcomeStatus.FAILED]
    if failed:
        yield from ("| failed | expected | got | consequence |", "|---|---|---|---|")
        for o in failed:
            yield f"| {o.check.id} | {_cell(o.expected)} | {_cell(o.got)} | {_cell(o.check.consequence)} |"
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
