"""Generates the gRPC stubs below the folder named on the command line; `make proto` calls it.

Runs in an environment of its own (grpcio-tools 1.80.0, mypy-protobuf 5.1.0), because the generator
caps protobuf below 7 and its version decides the oldest runtime that users may have.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent


def main(out: str) -> int:
    Path(out).mkdir(parents=True, exist_ok=True)
    sources = sorted(str(p.relative_to(HERE)) for p in HERE.rglob("*.proto"))
    outs = [f"--{plugin}_out={out}" for plugin in ("python", "grpc_python", "mypy", "mypy_grpc")]
    well_known = str(files("grpc_tools") / "_proto")
    return protoc.main(["protoc", f"-I{HERE}", f"-I{well_known}", *outs, *sources])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
