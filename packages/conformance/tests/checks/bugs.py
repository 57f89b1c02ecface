"""The bugs of the drivers in tests/helpers/conformance, each with the ids of the checks that must fail."""

from __future__ import annotations

from typing import Any

PLAIN: dict[str, set[str]] = {
    "registers once": {"REG-001", "REG-002", "REG-006", "REG-007", "UPG-003"},
    "slow GetInfo": {"REG-002"},
    "GetInfo changes": {"REG-002"},
    "wrong type": {"REG-003"},
    "v1beta1 is not served": {"REG-004", "SKW-001"},
    "endpoint is late": {"REG-005"},
    "rejection is not logged": {"REG-006"},
    "wrong device in the response": {"PRE-001", "PRE-009", "PRE-013", "PRE-014", "RST-002", "MET-002", "PRF-001"},
    "prepare is not idempotent": {"PRE-002", "PRE-007", "PRE-012"},
    "only the last claim of a call": {"PRE-003", "PRF-001"},
    "one error for the whole call": {"PRE-003"},
    "claim of another UID": {"PRE-004"},
    "claim without allocation": {"PRE-005"},
    "devices of other drivers": {"PRE-006"},
    "overlapping prepares": {"PRE-002", "PRE-007"},
    "one lock for all claims": {"PRE-008"},
    "stuck after a cancelled call": {"PRE-009"},
    "device with two holders": {"PRE-010"},
    "traceback in an error": {"PRE-011"},
    "long error": {"PRE-011"},
    "the first request for every device": {"PRE-013"},
    "alternative in the request's name": {"PRE-014"},
    "unprepare of an unknown claim": {"UNP-001"},
    "unprepare reads the claim": {"UNP-001", "UNP-002"},
    "CDI spec stays": {"UNP-003", "PRE-007", "RST-001", "UPG-002", "CDI-005"},
    "unknown CDI id": {"CDI-001", "RST-004"},
    "CDI version too old": {"CDI-001", "CDI-002", "RST-004"},
    "partial CDI spec": {"CDI-003"},
    "CDI name for all claims": {"CDI-004"},
    "unreadable CDI spec": {"CDI-005"},
    "missing host path": {"CDI-005"},
    "deletes foreign CDI specs": {"CDI-006"},
    "missing device node": {"CDI-007"},
    "pool stays incomplete": {"SLC-001"},
    "invalid slice": {"SLC-002"},
    "two slices of one generation": {"SLC-003"},
    "deleted slices stay deleted": {"SLC-004", "SLC-006"},
    "writes without change": {"SLC-005", "SLC-010"},
    "publisher ends after an error": {"SLC-006"},
    "dropped fields are not reported": {"SLC-007"},
    "endless writes for dropped fields": {"SLC-007"},
    "deletes foreign slices": {"SLC-008"},
    "no owner": {"SLC-009"},
    "polls": {"SLC-010"},
    "records in memory": {"RST-001", "UPG-002"},
    "crash loop on damaged state": {"RST-003"},
    "ignores a reboot": {"RST-004"},
    "exit code 1": {"RST-005"},
    "sockets stay": {"RST-005"},
    "stale socket": {"RST-001", "RST-002", "RST-003", "RST-004", "RST-006", "SKW-003", "SLC-007"},
    "refuses claims next to another instance": {"UPG-001"},
    "records of one instance": {"UPG-002"},
    "sockets of all instances are removed": {"UPG-003"},
    "slices are deleted on exit": {"UPG-004"},
    "slices are created again at the start": {"UPG-004"},
    "health without devices": {"HLT-001"},
    "health is not repeated": {"HLT-002"},
    "health stream opens once": {"HLT-003"},
    "health of v1 lacks a device": {"HLT-004"},
    "valid parameters are rejected": {"CFG-001", "CFG-004"},
    "invalid parameters are accepted": {"CFG-002", "CFG-004"},
    "unknown fields are ignored": {"CFG-003"},
    "parameters of other drivers": {"CFG-004", "PRE-006"},
    "metadata file is missing": {"MET-001", "CDI-005"},
    "metadata of another device": {"MET-002"},
    "metadata stays": {"MET-003"},
    "v1beta1 fails": {"SKW-001"},
    "lists all nodes": {"SEC-001"},
    "sockets open for all users": {"SEC-002"},
    "memory leak": {"PRF-002"},
    "descriptor leak": {"PRF-002"},
}
"""Bugs of ``plain_driver.py``."""

PROFILES: dict[str, dict[str, Any]] = {
    "registers once": {"ready_timeout": 8.0},
    "pool stays incomplete": {"ready_timeout": 8.0},
}
"""Fields of the profile for bugs that would wait for the default of 30 s."""

BY_CHANCE: dict[str, set[str]] = {
    "unprepare of an unknown claim": {"RST-002"},
    "records in memory": {"RST-002"},
    "overlapping prepares": {"RST-002"},
    "CDI spec stays": {"RST-002"},
    "publisher ends after an error": {"SLC-004"},
    "health stream opens once": {"HLT-001"},  # if an earlier check opened the stream
}
"""Checks that may fail too: it depends on the moment of a kill or of an outage."""

ACCEPTED = (
    "gRPC error for a wrong claim",  # the helper library of drivers in Go
    "error for a rejected registration",  # the same library
    "deleted slices return late",  # the same library
    "no devices in the response",  # network drivers
    "no pools and requests",
    "v1 only",
    "v1beta1 only",
    "one instance only",
    "ends after a rejected registration",
)
"""Behaviors of ``plain_driver.py`` that are no bugs, because a kubelet accepts them: no check may fail."""
