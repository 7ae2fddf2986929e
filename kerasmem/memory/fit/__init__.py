"""Training that survives out-of-memory errors."""

from kerasmem.memory.fit.fit import fit

__all__ = ["fit"]
