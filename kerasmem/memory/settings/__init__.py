"""How the framework takes the cards and their memory: set before it starts, told."""

from kerasmem.memory.settings.configure import configure
from kerasmem.memory.settings.status import status

__all__ = ["configure", "status"]
