"""Generated stubs of the kubelet's APIs. `make proto` generates all modules of this folder except this one.

protobuf imports its message classes in pure Python even if it uses the C implementation: 37 modules and 2 MiB that are never
used. This module defers their import to the first access. Source: importlib.util.LazyLoader in Python's documentation.
"""

import importlib.util
import sys

_UNUSED = "google.protobuf.internal.python_message"


def _defer_import(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or name in sys.modules:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder, _, last = name.rpartition(".")
    setattr(sys.modules[folder], last, module)  # otherwise `from folder import last` would load it
    spec.loader.exec_module(module)


_defer_import(_UNUSED)
