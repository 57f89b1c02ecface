"""``dra doctor``: findings about a node, its runtime, its drivers and their cluster, each with a remedy. It changes nothing."""

from .examination import Examination, examine
from .findings import Finding, Level

__all__ = ["Examination", "Finding", "Level", "examine"]
