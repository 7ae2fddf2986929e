"""Gradients of a torch training step."""

from collections.abc import Sequence
from typing import Any

import torch

from kerasmem.backends.gradients import GradientBackend, Upstream
from kerasmem.backends.recompute import Function


class TorchGradients(GradientBackend):
    """Gradients of a torch training step, all of them dense."""

    def _is_small(self, gradient: torch.Tensor) -> bool:
        return False  # nothing is compiled, so joining would only cost time

    def segment_squares(
        self, vector: torch.Tensor, sizes: Sequence[int]
    ) -> torch.Tensor:
        """Return the squared L2 norm of each consecutive part of a float32 vector."""
        return self.squared_norms(self.joined(torch.split(vector, list(sizes))))

    def crossentropy(
        self, logits: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return per-row cross-entropies, gradients by the logits, and argmax."""
        best = torch.argmax(logits, dim=-1).to(torch.int32)
        places = labels.long()[:, None]
        slopes = torch.log_softmax(logits.detach(), dim=-1)
        losses = -slopes.gather(1, places)[:, 0]
        slopes.exp_().scatter_add_(1, places, torch.full_like(losses, -1.0)[:, None])
        return losses, slopes, best

    def _gradients_of(
        self, function: Function, tensors: Sequence[Any], upstream: Upstream
    ) -> list[Any]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        with torch.enable_grad():
            outputs = function(*leaves)
        own = upstream([y.detach() for y in outputs])
        pairs = [p for p in zip(outputs, own, strict=True) if p[0].requires_grad]
        if not pairs:
            return [torch.zeros_like(x) for x in leaves]
        options = {"allow_unused": True, "materialize_grads": True}
        outputs, own = zip(*pairs, strict=True)
        return list(torch.autograd.grad(outputs, leaves, own, **options))
