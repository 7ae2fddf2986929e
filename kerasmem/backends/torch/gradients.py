"""The gradients of a torch step, measured in few calls, none of which waits."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kerasmem.backends.gradients import (
    GradientBackend,
    GradientMeter,
    Observer,
    observe_updates,
)

_SHORT = 65_536
_ROW = 4096


class TorchMeter(GradientMeter):
    """Measures dense gradients; Keras has no others on torch."""

    def squared_norms(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the square of the L2 norm of each, a float32 vector."""
        flat = [gradient.reshape(-1).float() for gradient in gradients]
        short = iter(_norms([each for each in flat if each.numel() <= _SHORT]))
        norms = [next(short) if g.numel() <= _SHORT else _long_norm(g) for g in flat]
        return torch.stack(norms).square()

    def statistics(
        self, gradients: Sequence[torch.Tensor], squared_norms: torch.Tensor
    ) -> torch.Tensor:
        """Return a row per gradient: largest, numbers of nonzero and nonfinite."""
        lowest, highest = zip(*map(torch.aminmax, gradients), strict=True)
        largest = torch.maximum(torch.stack(highest), -torch.stack(lowest))
        nonzero = torch.stack([torch.count_nonzero(each) for each in gradients])
        nonfinite = torch.zeros_like(nonzero)
        # Only a CPU may be asked: a GPU would have to be waited for.
        if largest.device.type != "cpu" or not bool(squared_norms.isfinite().all()):
            nonfinite = torch.stack([_nonfinite(gradient) for gradient in gradients])
        return torch.stack([largest.float(), nonzero, nonfinite], dim=1)

    def size_bytes(self, gradient: torch.Tensor) -> int:
        """Return the bytes that hold the gradient."""
        return gradient.numel() * gradient.element_size()


def _nonfinite(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.numel() - torch.count_nonzero(gradient.isfinite())


def _norms(short: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    # Private by name, and what torch's own gradient clipping calls: there is no other
    # way to have one call for many tensors.
    norms: Any = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
    return norms(short) if short else ()


def _long_norm(flat: torch.Tensor) -> torch.Tensor:
    # In short rows: on a CPU torch adds up a long vector so plainly that the norm of
    # 20 million float32 entries is off by 1e-3.
    whole = flat.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1)
    rest = torch.linalg.vector_norm(flat[whole:])
    return torch.linalg.vector_norm(torch.cat([rows, rest[None]]))


class TorchGradients(GradientBackend):
    """The gradients of a torch step, all of them dense."""

    def observe_gradients(
        self, optimizer: Any, observer: Observer
    ) -> Callable[[], None]:
        """Call `observer(gradients, variables)` in every update; return the undo."""
        # The observer counts steps in Python: its compiled form would keep one count.
        disable: Any = torch.compiler.disable
        return observe_updates(optimizer, observer, disable)

    def observe_loss_scaling(
        self, optimizer: Any, observer: Callable[[Any], None]
    ) -> Callable[[], None]:
        """Call `observer(finite)` in every step of a loss scaling optimizer."""
        disable: Any = torch.compiler.disable
        return super().observe_loss_scaling(optimizer, disable(observer))

    def gradient_meter(self, *, compiled: bool) -> GradientMeter:
        """Return what measures gradients in a step."""
        return TorchMeter()

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

    def branches_cost(self, *, compiled: bool) -> bool:
        """Return False: the step is no graph."""
        return False
