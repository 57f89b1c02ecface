"""msgspec structs whose errors for wrong arguments contain the class name, as the errors of Python classes do."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_MESSAGES = (
    (re.compile("^Unexpected keyword argument ('.*')$"), r"got an unexpected keyword argument \1"),
    (re.compile("^Missing required argument ('.*')$"), r"missing 1 required argument: \1"),
    (re.compile("^Extra positional arguments provided$"), "got too many positional arguments"),
)


class NamedStructMeta(msgspec.StructMeta):
    """Metaclass of structs that driver authors create."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as e:
            for pattern, replacement in _MESSAGES:
                if pattern.match(str(e)):
                    raise TypeError(f"{cls.__name__}.__init__() {pattern.sub(replacement, str(e))}") from None
            raise
