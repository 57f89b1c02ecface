"""``python -m dra_kubeletplugin.metadata``: prints the devices of this container."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import MetadataError
from .document import Device, Value
from .reader import ROOT_VARIABLE, devices


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the devices. Returns the exit code: 0, also without devices; 1 if a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m dra_kubeletplugin.metadata", description="The DRA devices of this container (KEP-5304)."
    )
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="the output format (default: text)"
    )
    parser.add_argument("--claim", default="", help="show only devices of this claim (its name in the pod)")
    parser.add_argument("--request", default="", help="show only devices of this request")
    parser.add_argument("--driver", default="", help="show only devices of this driver")
    parser.add_argument(
        "--root",
        type=Path,
        help=f"read the files in this folder instead of the standard one (environment: {ROOT_VARIABLE})",
    )
    options = parser.parse_args(arguments)
    try:
        found = devices(claim=options.claim, request=options.request, driver=options.driver, root=options.root)
    except MetadataError as e:
        print(e, file=sys.stderr)
        return 1
    if options.output == "json":
        print(msgspec.json.format(msgspec.json.encode(found, enc_hook=str), indent=2).decode())
    elif found:
        print(_table(found))
    else:
        print(
            "this container has no device metadata: it uses no claim, or the driver does not write metadata",
            file=sys.stderr,
        )
    return 0


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(_shown, value)) + "]" if isinstance(value, tuple) else str(value)


def _table(found: Sequence[Device]) -> str:
    rows = [("CLAIM", "REQUEST", "DRIVER", "POOL", "DEVICE", "ATTRIBUTES")]
    for device in found:
        facts = [f"{name}={_shown(value)}" for name, value in device.attributes.items()]
        if device.network:
            facts += [f"interface={device.network.interface_name}", *device.network.ips]
        claim = device.claim.pod_claim or device.claim.name
        rows.append((claim, device.request, device.driver, device.pool, device.name, " ".join(facts)))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
