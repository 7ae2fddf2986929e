"""Training that survives out-of-memory."""

from kerasmem.memory.fit.fit import fit

__all__ = ["fit"]
