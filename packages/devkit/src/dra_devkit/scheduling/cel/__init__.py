"""CEL with the environment that Kubernetes 1.36 provides for device selectors.

The language follows the CEL specification (github.com/google/cel-spec); the libraries and cost units follow Kubernetes.
``compile_selector`` checks an expression, ``Selector.matches`` evaluates it against one device. No CEL library for Python provides
this environment: ``cel-expr-python`` has no lazy default maps and no cost limit. So the compiler is part of this project. Tests
compare it with recorded results of Kubernetes.
"""

from .derived import compile_derived
from .selector import COST_LIMIT, Device, Selector, compile_selector
from .values import CelError, CompileError

__all__ = ["COST_LIMIT", "CelError", "CompileError", "Device", "Selector", "compile_derived", "compile_selector"]
