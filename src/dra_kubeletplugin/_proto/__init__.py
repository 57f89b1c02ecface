"""Generated stubs of the kubelet's APIs; `make proto` makes the modules of this folder anew, but for this one.

protobuf imports its message classes in Python also where those in C are used: 37 modules and 2 MiB that nobody needs. Here they
are loaded when somebody first looks into them. Source: importlib.util.LazyLoader in Python's documentation.
"""

import importlib.util
import sys

_UNUSED = "google.protobuf.internal.python_message"


def _load_late(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or name in sys.modules:
        return
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder, _, last = name.rpartition(".")
    setattr(sys.modules[folder], last, module)  # or the import of it looks into it
    spec.loader.exec_module(module)


_load_late(_UNUSED)
