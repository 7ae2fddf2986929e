"""Memory growth over many trainings, predictions and models."""

from kerasmem.extras.growth.scope import Scope as scope  # noqa: N813 - called as one

__all__ = ["scope"]
