"""The peak of a training under each option, planned for a card that is not here."""

from collections.abc import Callable, Sequence
from typing import Any

from kerasmem.errors import KerasMemError
from kerasmem.extras.tune.advice import leanest_by_plan
from kerasmem.extras.tune.measure import figures_of
from kerasmem.extras.tune.tune import announced, chosen_variants, without_times
from kerasmem.extras.tune.variants import AS_COMPILED, Variant, changed, variants
from kerasmem.memory.estimate.estimate import METHODS, checked_request
from kerasmem.memory.estimate.request import Request
from kerasmem.records import Tuning, VariantFigures


def plan_options(  # noqa: PLR0913 - those of the command
    model: Any,
    batch_size: int,
    device: str,
    *,
    optimizer: Any | None = None,
    input_shape: Any | None = None,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Return the planned peak of a compiled step under each option; nothing runs.

    There are no times, and no options that make another step of XLA than a plan is of.

    Args:
        model: a built, compiled `keras.Model`.
        batch_size: samples of an update, from 1.
        device: a card such as `"h100"`, as for `estimate_memory`.
        optimizer: an optimizer or its name; None for the compiled one.
        input_shape: shape of the input without the batch axis, if the model leaves
            lengths open.
        only: parts of the names of the options to try; empty for all.
        say: is told what is planned next.

    Raises:
        ConfigError: if an argument is wrong.
        ModelError: if the model is not built, or its input shape is not known.
    """
    request = checked_request(
        model,
        batch_size,
        optimizer=optimizer,
        jit_compile=True,
        device=device,
        input_shape=input_shape,
    )
    possible = [
        variant
        for variant in variants(request, devices=1)
        if variant.jit_compile is None and variant.left_out is None
    ]
    tried = announced([AS_COMPILED, *chosen_variants(possible, only)], say)
    figures = [_planned(request, variant) for variant in tried]
    return without_times(request, figures, leanest_by_plan(figures))


def _planned(request: Request, variant: Variant) -> VariantFigures:
    try:
        peak = METHODS["plan"](changed(request, variant)).peak_bytes
    except KerasMemError as error:
        return figures_of(request, variant, {"reason": " ".join(str(error).split())})
    peaks = {"peak_bytes": peak, "peak_low_bytes": peak, "peak_source": "plan"}
    return figures_of(request, variant, peaks)
