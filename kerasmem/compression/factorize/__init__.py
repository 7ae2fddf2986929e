"""Factorization: one large kernel becomes two or three small ones."""

from kerasmem.compression.factorize.config import Factorize

__all__ = ["Factorize"]
