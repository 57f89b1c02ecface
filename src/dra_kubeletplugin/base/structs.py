"""Structs of msgspec that are named where they are called wrongly, as Python's own classes are."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_SAID = (
    (re.compile("^Unexpected keyword argument ('.*')$"), r"got an unexpected keyword argument \1"),
    (re.compile("^Missing required argument ('.*')$"), r"missing 1 required argument: \1"),
    (re.compile("^Extra positional arguments provided$"), "takes fewer positional arguments"),
)


class NamedStructMeta(msgspec.StructMeta):
    """Of classes that authors make objects of."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except TypeError as e:
            for said, instead in _SAID:
                if said.match(str(e)):
                    raise TypeError(f"{cls.__name__}.__init__() {said.sub(instead, str(e))}") from None
            raise
