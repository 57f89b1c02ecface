"""All functions of the environment, by name. For arguments of wrong types they raise the error ``no such overload``."""

from . import formats, library_core, library_kubernetes, library_lists, library_strings, urls
from .library_core import parse_duration, parse_timestamp
from .patterns import regex
from .registry import FUNCTIONS, need

__all__ = [
    "FUNCTIONS",
    "formats",
    "library_core",
    "library_kubernetes",
    "library_lists",
    "library_strings",
    "need",
    "parse_duration",
    "parse_timestamp",
    "regex",
    "urls",
]
