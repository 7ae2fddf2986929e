"""Time of generated tokens, for the causal language models of KerasHub."""

import statistics
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from kerasmem.errors import ConfigError, as_received
from kerasmem.files.data import sample_inputs
from kerasmem.stats.timing import in_turns
from kerasmem.types import Dataset, Model


def check_generates(models: Mapping[str, Any], data: Dataset, count: int) -> None:
    """Raises `ConfigError` if a model or a row is unfit to generate `count` tokens."""
    for name, model in models.items():
        if not callable(getattr(model, "generate", None)):
            raise ConfigError(
                "Generation needs a CausalLM of KerasHub. Received: --generate with "
                f"{name}, {as_received(model)}. Next: omit --generate."
            )
    length = _ids(data).shape[1]
    if count >= length:
        raise ConfigError(
            "The prompt and the new tokens are one row of the data. Received: "
            f"--generate {count} with rows of {length} tokens. Next: a smaller number, "
            "or --length for longer rows."
        )


def generation_figures(
    models: Mapping[str, Any], data: Dataset, count: int
) -> list[dict[str, float]]:
    """Returns the time to the first token and the tokens per second of each model.

    The last `count` tokens of the first row are generated again, one sequence at a
    time. The models take turns. A call with one missing token fills an equally long
    cache, and so is the time to the first token.
    """
    ids = _ids(data)
    calls = [
        partial(_generate, model, ids, new)
        for model in models.values()
        for new in (1, count)
    ]
    times = map(statistics.median, in_turns(calls))
    return [
        {"first_token_ms": first, "generated_per_second": 1e3 * count / whole}
        for first, whole in zip(times, times, strict=True)
    ]


def _ids(data: Dataset) -> np.ndarray:
    x = sample_inputs(data, 1)
    return x["token_ids"] if isinstance(x, dict) else x


def _generate(model: Model, ids: np.ndarray, new: int) -> None:
    mask = np.arange(ids.shape[1])[None] < ids.shape[1] - new
    prompt = {"token_ids": ids, "padding_mask": mask}
    model.generate(prompt, stop_token_ids=None)
