"""Training that recomputes activations instead of saving them."""

from kerasmem.memory.rematerialize.plan import Piece, Rematerialization
from kerasmem.memory.rematerialize.rematerialize import plan_of, rematerialize

__all__ = ["Piece", "Rematerialization", "plan_of", "rematerialize"]
