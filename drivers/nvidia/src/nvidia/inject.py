"""Causes faults of the imitated GPUs on a described host: `python -m nvidia.inject HOST --xid ADDRESS NUMBER`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dra_kubeletplugin import Host

from .described import hardware_state


def main(argv: Sequence[str] | None = None) -> None:
    """Sets values of the state first, so that an XID error finds the recovery action that belongs to it."""
    parser = argparse.ArgumentParser(prog="python -m nvidia.inject", description=__doc__)
    parser.add_argument(
        "host", type=Path, metavar="HOST", help="folder of the described host; `dra dev status` prints it"
    )
    parser.add_argument("--xid", nargs=2, metavar=("ADDRESS", "NUMBER"), help="XID error that the GPU reports")
    parser.add_argument(
        "--set", nargs=2, metavar=("KEY", "JSON"), help="new value of a key of the state, such as action or lost"
    )
    args = parser.parse_args(argv)
    hardware = hardware_state(Host(args.host, args.host / "dev", args.host / "proc"))
    if args.set:
        key, value = args.set
        if key not in hardware.read():
            parser.error(f"the state has no key {key!r}; it has {', '.join(hardware.read())}")
        hardware.set(**{key: json.loads(value)})
    if args.xid:
        hardware.send_xid(args.xid[0], int(args.xid[1]))


if __name__ == "__main__":
    main()
