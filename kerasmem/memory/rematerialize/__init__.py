"""Training that computes activations again instead of keeping them."""

from kerasmem.memory.rematerialize.rematerialize import plan_of, rematerialize
from kerasmem.memory.rematerialize.setting import Piece, Rematerialization

__all__ = ["Piece", "Rematerialization", "plan_of", "rematerialize"]
