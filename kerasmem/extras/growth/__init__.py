"""Growth over many trainings, predictions and models: what stayed, who holds it."""

from kerasmem.extras.growth.scope import Freed, GrowthWatch, Scope, Stayed

scope = Scope
watch_growth = GrowthWatch

__all__ = ["Freed", "GrowthWatch", "Scope", "Stayed", "scope", "watch_growth"]
