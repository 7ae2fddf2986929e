"""The smallest model that still does its job: a search under budgets."""

from kerasmem.compression.search.request import Request
from kerasmem.compression.search.target import Target

__all__ = ["Request", "Target"]
