"""The gradients of a torch step."""

from collections.abc import Callable
from typing import Any

import torch

from kerasmem.backends.gradients import (
    GradientBackend,
    Observer,
    observe_updates,
)


class TorchGradients(GradientBackend):
    """The gradients of a torch step, all of them dense."""

    def observe_gradients(
        self, optimizer: Any, observer: Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo."""
        # The observer counts steps in Python: its compiled form would keep one count.
        disable: Any = torch.compiler.disable
        return observe_updates(optimizer, observer, disable)

    def crossentropy(
        self, logits: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return cross-entropies of rows, slopes by the logits, and best words."""
        best = torch.argmax(logits, dim=-1).to(torch.int32)
        places = labels.long()[:, None]
        slopes = torch.log_softmax(logits.detach(), dim=-1)
        losses = -slopes.gather(1, places)[:, 0]
        slopes.exp_().scatter_add_(1, places, torch.full_like(losses, -1.0)[:, None])
        return losses, slopes, best
