"""The checks, one module for each group of the catalogue. An import of this package fills the catalogue in the order of execution."""

from . import registration, prepare, unprepare, cdi, slices, restart, upgrade, health, config, metadata  # noqa: F401, I001
from . import skew, security, performance  # noqa: F401
