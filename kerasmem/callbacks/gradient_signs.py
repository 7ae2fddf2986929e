"""What one epoch's gradients show of each layer, before anything is said of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kerasmem.callbacks.layer_ranges import layer_of, layer_words
from kerasmem.records import VariableGradient

VANISHED = 1e-6
"""Share of the largest kernel's gradient norm below which a kernel's has vanished."""

TOO_LARGE_UPDATE = 1.0
"""Update-to-weight ratio from which a layer is overwritten rather than trained."""

ABSURD_UPDATE = 100.0
"""The same in the first epoch, in which weights that begin near zero double."""

LEAST_SAMPLES = 3
"""Sampled updates, of epochs in a row, below which nothing is said of one layer."""


@dataclass(frozen=True)
class Sign:
    """What one layer showed in one epoch.

    Args:
        layer: path of the layer.
        value: the figure that gave it away: a norm, or a ratio.
        samples: number of sampled updates in which it did.
    """

    layer: str
    value: float
    samples: int


def dead(variables: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers all of whose gradients were exactly zero."""
    by_layer: dict[str, list[VariableGradient]] = {}
    for variable in variables:
        by_layer.setdefault(layer_of(variable.path), []).append(variable)
    for layer, own in by_layer.items():
        if all(one.zero_fraction == 1.0 and not one.nonfinite for one in own):
            yield Sign(layer, 0.0, min(one.steps for one in own))


def vanishing(kernels: Sequence[VariableGradient]) -> Iterator[Sign]:
    """Yield the layers whose kernel's gradient is next to nothing."""
    largest = max((kernel.norm for kernel in kernels), default=0.0)
    for kernel in kernels:
        if 0 < kernel.norm < VANISHED * largest:
            yield Sign(layer_of(kernel.path), kernel.norm, kernel.steps)


def too_large(kernels: Sequence[VariableGradient], *, is_first: bool) -> Iterator[Sign]:
    """Yield the layers whose updates are larger than their weights.

    Args:
        kernels: the kernels' figures.
        is_first: whether no epoch came before; then only what is absurd counts.
    """
    for kernel in kernels:
        ratio = kernel.update_ratio or 0.0
        if ratio >= ABSURD_UPDATE:
            yield Sign(layer_of(kernel.path), ratio, LEAST_SAMPLES)
        elif ratio > TOO_LARGE_UPDATE and not is_first:
            yield Sign(layer_of(kernel.path), ratio, kernel.steps)


def dead_text(signs: Mapping[str, Sign], order: Sequence[str]) -> str:
    """Return in words that layers are dead."""
    samples = min(sign.samples for sign in signs.values())
    it, does, its = (
        ("it", "does", "Its") if len(signs) == 1 else ("they", "do", "Their")
    )
    return (
        f"Every gradient of {layer_words(signs, order)} was exactly zero in all "
        f"{samples} sampled updates of the epoch: {it} {does} not learn. {its} output "
        "may be cut off further on, as by a ReLU that no input passes."
    )


def vanishing_text(
    signs: Mapping[str, Sign],
    order: Sequence[str],
    kernels: Sequence[VariableGradient],
) -> str:
    """Return in words that the gradients of layers have vanished."""
    largest = max(kernels, key=lambda kernel: kernel.norm)
    where = layer_words(signs, order)
    norms = _range([sign.value for sign in signs.values()])
    what = (
        f"The gradient of {where} has a norm of {norms}, that of "
        f"{layer_of(largest.path)} one of {largest.norm:.2g}: {where} hardly learns."
        if len(signs) == 1
        else f"The gradients of {where} have norms of {norms}, that of "
        f"{layer_of(largest.path)} one of {largest.norm:.2g}: these {len(signs)} "
        "layers hardly learn."
    )
    return f"{what} Other activations, normalization or skip connections help."


def too_large_text(signs: Mapping[str, Sign], order: Sequence[str], advice: str) -> str:
    """Return in words that layers are overwritten."""
    it = "it is" if len(signs) == 1 else "they are"
    its = "its" if len(signs) == 1 else "their"
    ratios = _range([sign.value for sign in signs.values()])
    return (
        f"An update of {layer_words(signs, order)} is {ratios} times as large as {its} "
        f"weights: {it} overwritten rather than trained. {advice}"
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"
