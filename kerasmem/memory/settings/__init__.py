"""How the framework takes the cards and their memory: set before it starts, told."""

from kerasmem.memory.settings.configure import configure, status

__all__ = ["configure", "status"]
