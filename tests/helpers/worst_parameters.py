"""Opaque parameters that take the most work to validate within the limits of the API server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dra_kubeletplugin import Config, Quantity
from dra_kubeletplugin.base.json_types import JSON

DRIVER = "worst.example.com"
PARAMETERS = 10 * 1024  # bytes of opaque.parameters of one entry: MaxLen of DeviceConfiguration in resource.k8s.io/v1
ENTRIES = 32  # entries of a claim; an allocation also has the entries of the classes
REQUESTS = 32
LIMIT = 0.020  # seconds of the event loop for one claim or review
MACHINE = 5  # factor by which a machine may be slower than the machine of the first measurement


class Leaf(Config):
    size: int = 0
    unit: str = "a"


class Plain(Config):
    """Fields of each kind: scalars, an object, a list of objects, mappings, a formatted string."""

    KIND = "Plain"
    API_VERSION = f"{DRIVER}/v1"
    time_slice: int = 1
    interval: str = "s"
    leaf: Leaf | None = None
    leaves: Sequence[Leaf] = ()
    named: Mapping[str, Leaf] = msgspec.field(default_factory=dict)
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)
    memory: Quantity = Quantity("1Gi")


class Older(Config):
    KIND = "Versioned"
    API_VERSION = f"{DRIVER}/v1alpha1"
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)


class Versioned(Config):
    KIND = "Versioned"
    API_VERSION = f"{DRIVER}/v1"
    OLDER = (Older,)
    numbers: Mapping[str, int] = msgspec.field(default_factory=dict)

    @classmethod
    def convert_from(cls, older: Any, /) -> Versioned:
        return cls(numbers=older.numbers)


KINDS: tuple[type[Config], ...] = (Plain, Versioned)


def fill(size: int, item: Callable[[int], tuple[str, Any]]) -> JSON:
    """Returns an object of at most ``size`` bytes as compact JSON."""
    out: JSON = {}
    bytes_left = size
    for i in itertools.count():
        key, value = item(i)
        bytes_left -= len(key) + len(json.dumps(value, separators=(",", ":"))) + 4
        if bytes_left < 0:
            return out
        out[key] = value
    raise AssertionError("never")


def nested(depth: int, key: str) -> JSON:
    out: JSON = {}
    for _ in range(depth):
        out = {key: out}
    return out


SHAPES: dict[str, Callable[[int, int], JSON]] = {
    # name: the fields of entry i, in at most n bytes
    "many unknown keys": lambda i, n: fill(n, lambda j: (f"k{i}x{j}", 1)),
    "near names": lambda i, n: fill(n, lambda j: (f"timeSlic{j}x{i}", 1)),
    "long near names": lambda i, n: fill(n, lambda j: (f"{'timeSlice' * 50}{j}x{i}", 1)),
    "few long keys": lambda i, n: {f"{c}{i}" * (n // 60): 1 for c in "abcdefghij"},
    "wrong items": lambda i, n: {"leaves": [[]] * (n // 3)},
    "right items": lambda i, n: {"leaves": [{}] * (n // 3)},
    "wrong in a mapping": lambda i, n: {"named": fill(n, lambda j: (f"{i}.{j}", 1))},
    "right mapping": lambda i, n: {"named": fill(n, lambda j: (f"{i}.{j}", {}))},
    "last of a mapping": lambda i, n: {"named": fill(n, lambda j: (f"{i}.{j}", {})) | {"z": 1}},
    "wrong numbers": lambda i, n: {"numbers": fill(n, lambda j: (f"{i}.{j}", ""))},
    "last number": lambda i, n: {"numbers": fill(n, lambda j: (f"{i}.{j}", 1)) | {"z": ""}},
    "right numbers": lambda i, n: {"numbers": fill(n, lambda j: (f"{i}.{j}", 1))},
    "long quantity": lambda i, n: {"memory": "9" * n},
    "long malformed quantity": lambda i, n: {"memory": [[]] * (n // 3)},
    "long integer": lambda i, n: {"timeSlice": int("9" * 300)},
    "deep objects": lambda i, n: {"leaf": nested(min(n // 5, 900), "a")},
    "deep with long keys": lambda i, n: {"leaf": nested(28, "a" * (n // 29))},
    "nested lists": lambda i, n: {"x": [[]] * (n // 3)},
    "surrogates": lambda i, n: fill(n, lambda j: (f"\ud800{i}{j}", "\udc00")),
    "same": lambda i, n: fill(n, lambda j: (f"k{j}", 1)),
}


def entries(kind: type[Config], shape: str, count: int = ENTRIES, size: int = PARAMETERS) -> list[JSON]:
    """Returns ``spec.devices.config`` of a claim."""
    head = {"apiVersion": kind.API_VERSION, "kind": kind.KIND}
    fields = [SHAPES[shape](i, size - 200) for i in range(count)]
    return [{"opaque": {"driver": DRIVER, "parameters": head | f}} for f in fields]


def claim(config: Sequence[JSON], name: str = "worst", *, requests: int = 1) -> JSON:
    """Returns a ResourceClaim with this configuration."""
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {
            "requests": [{"name": f"r{i}", "exactly": {"deviceClassName": "c"}} for i in range(requests)],
            "config": list(config),
        }},
    }  # fmt: skip


def with_allocation(obj: JSON, config: Sequence[JSON], *, requests: int = 1) -> JSON:
    """Returns the claim with one device for each request. Class and claim each have the maximum number of entries."""
    results = [{"request": f"r{i}", "driver": DRIVER, "pool": "node", "device": f"d-{i}"} for i in range(requests)]
    all_config = [{"source": source, **entry} for source in ("FromClass", "FromClaim") for entry in config]
    return obj | {"status": {"allocation": {"devices": {"results": results, "config": all_config}}}}


@contextlib.contextmanager
def event_loop_steps() -> Iterator[list[float]]:
    """Yields the CPU seconds of each step of event loops in this thread, while the context lasts. Other processes and
    threads do not count.
    """
    step_seconds: list[float] = []
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        start = time.thread_time()
        try:
            run(handle)
        finally:
            step_seconds.append(time.thread_time() - start)

    asyncio.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield step_seconds
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
