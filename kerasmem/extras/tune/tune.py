"""Compares training options by measurement."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kerasmem import backends
from kerasmem.backends import device_kind
from kerasmem.checks import invalid
from kerasmem.extras.tune.advice import (
    combined,
    fastest,
    noise,
    recommendation,
)
from kerasmem.extras.tune.measure import attempt
from kerasmem.extras.tune.variants import AS_COMPILED, Variant, variants
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.request import Request
from kerasmem.records import Tuning, VariantFigures
from kerasmem.stats.pareto import front
from kerasmem.types import Model, Optimizer


def tune(
    model: Model,
    batch_size: int,
    *,
    optimizer: Optimizer | None = None,
    input_shape: Any | None = None,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Measure peak memory and time of a training step under each option.

    Each option runs in its own process on a batch of zeros. The model as compiled runs
    first and last, to show the noise of the times. The fastest option runs twice. The
    model is not modified.

    Args:
        model: Built and compiled `keras.Model`.
        batch_size: Int >= 1. Number of samples per update.
        optimizer: Optimizer or its name. Defaults to the compiled optimizer.
        input_shape: Input shape without the batch axis, for models with open lengths.
            See `estimate_memory`.
        only: Substrings of the option names to try. Defaults to all options.
        say: Function called with the name of the next option.

    Raises:
        ConfigError: If an argument is invalid or the model has a different fixed batch
            size.
        ModelError: If the model is not built, its input shape is not known, or it
            cannot be sent to another process.
    """
    device = device_kind()
    request = checked_request(
        model, batch_size, optimizer=optimizer, device=device, input_shape=input_shape
    )
    request.job()  # fail early if the model cannot be sent to another process
    backend = backends.current()
    devices = backend.step_options().device_count(len(backend.cuda_ordinals()))
    options = _chosen_variants(variants(request, devices), only)
    announced_options = _announced([AS_COMPILED, *options, AS_COMPILED], say)
    first, *others, last = (attempt(request, variant) for variant in announced_options)
    apart = noise(first, last)
    figures = [combined(first, last), *others]
    figures = _confirmed(request, options, figures, apart, say)
    return Tuning(
        batch_size=request.batch_size,
        backend=request.backend,
        device=request.device,
        jit_compile=request.jit_compile,
        dtype_policy=request.model.dtype_policy.name,
        variants=_with_front(figures),
        noise=apart,
        recommendation=recommendation(figures, apart),
    )


def _chosen_variants(variants: Sequence[Variant], only: Sequence[str]) -> list[Variant]:
    for part in only:
        if not any(part in variant.name for variant in variants):
            names = ", ".join(repr(variant.name) for variant in variants)
            raise invalid("tune", "only", part, f"a substring of one of {names}")
    return [v for v in variants if not only or any(part in v.name for part in only)]


def _announced(
    chosen: Sequence[Variant], say: Callable[[str], None]
) -> Iterator[Variant]:
    for number, variant in enumerate(chosen, 1):
        say(f"{number} of {len(chosen)}: {variant.name}")
        yield variant


def _confirmed(
    request: Request,
    chosen: Sequence[Variant],
    figures: Sequence[VariantFigures],
    apart: float | None,
    say: Callable[[str], None],
) -> list[VariantFigures]:
    """Return the figures, with the fastest option measured twice.

    A single run may be fast by chance. The search repeats until the fastest option has
    run twice.
    """
    figures_by_name = {figure.name: figure for figure in figures}
    by_name = {variant.name: variant for variant in chosen}
    while (
        best := fastest([*figures_by_name.values()], apart)
    ) and best.name in by_name:
        say(f"again, to confirm: {best.name}")
        again = attempt(request, by_name.pop(best.name))
        figures_by_name[best.name] = again if again.reason else combined(best, again)
    return [*figures_by_name.values()]


def _with_front(figures: Sequence[VariantFigures]) -> tuple[VariantFigures, ...]:
    ran = [figure for figure in figures if figure.peak_bytes is not None]
    # Peaks from different sources are not comparable.
    ran = [figure for figure in ran if figure.peak_source == ran[0].peak_source]
    points = [(figure.peak_bytes or 0, figure.step_ms or 0.0) for figure in ran]
    best = {f.name for f, is_on in zip(ran, front(points), strict=True) if is_on}
    return tuple(replace(figure, on_front=figure.name in best) for figure in figures)
