"""What is broken: findings about a node, its runtime, its drivers and their cluster, each with what to do. Nothing is changed."""

from .examination import Examination, examine
from .findings import Finding, Level

__all__ = ["Examination", "Finding", "Level", "examine"]
