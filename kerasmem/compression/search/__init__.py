"""The smallest model that still does its job: a search under budgets."""

from kerasmem.compression.search.request import Request

__all__ = ["Request"]
