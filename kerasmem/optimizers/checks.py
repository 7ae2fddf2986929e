"""What the optimizers' arguments may be."""

import re
from collections.abc import Iterable
from typing import Any

from kerasmem.errors import ConfigError

_LEAST_BLOCK = 16


def check_betas(**betas: Any) -> None:
    """Raise ConfigError for a decay outside of [0, 1)."""
    for name, beta in betas.items():
        if not isinstance(beta, int | float) or not 0 <= beta < 1:
            raise ConfigError(
                f"The {name} of Adam8bit is the share of a moment that is left after a "
                f"step, at least 0 and less than 1. Received: {name}={beta!r}."
            )


def check_amsgrad(amsgrad: Any) -> None:
    """Raise ConfigError if the largest second moments are asked for."""
    if amsgrad:
        raise ConfigError(
            "Adam8bit keeps no largest second moments: they would take half of what it "
            f"saves. Expected: amsgrad=False. Received: amsgrad={amsgrad!r}. "
            "Next: leave it out, or use keras.optimizers.Adam(amsgrad=True)."
        )


def check_sizes(block_size: Any, min_quantized_size: Any) -> None:
    """Raise ConfigError for sizes that are not whole numbers or too small."""
    least = {"block_size": _LEAST_BLOCK, "min_quantized_size": 0}
    received = {"block_size": block_size, "min_quantized_size": min_quantized_size}
    for name, size in received.items():
        is_whole = isinstance(size, int) and not isinstance(size, bool)
        if not is_whole or size < least[name]:
            raise ConfigError(
                f"The {name} of Adam8bit is a number of entries, at least "
                f"{least[name]}. Received: {name}={size!r}."
            )


def checked_patterns(patterns: Any) -> tuple[str, ...]:
    """Return regular expressions as a tuple.

    Raises:
        ConfigError: if one is no regular expression.
    """
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise ConfigError(
            "The full_precision of Adam8bit is a list of regular expressions. "
            f"Received: full_precision={patterns!r}. Next: pass [{patterns!r}]."
        )
    found = tuple(patterns)
    for pattern in found:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"A pattern in full_precision of Adam8bit is no regular expression "
                f"({error}). Received: full_precision={found!r}."
            ) from error
    return found


def check_axes(axes: Any) -> None:
    """Raise ConfigError for a way to factor that there is not."""
    if axes not in {"auto", "last"}:
        raise ConfigError(
            "The axes of Adafactor are 'last' for the last two, as in Keras, or 'auto' "
            "for a matrix where these are not the two largest. "
            f"Received: axes={axes!r}."
        )
