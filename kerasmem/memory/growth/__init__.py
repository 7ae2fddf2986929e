"""Growth over many trainings, predictions and models: what stayed, who holds it."""

from kerasmem.memory.growth.freeing import Freed
from kerasmem.memory.growth.scope import GrowthWatch, Scope, Stayed

scope = Scope
watch_growth = GrowthWatch

__all__ = ["Freed", "GrowthWatch", "Scope", "Stayed", "scope", "watch_growth"]
