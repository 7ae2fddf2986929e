"""The optimizer of a model as it was before the first step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kerasmem.errors import ModelError


@contextmanager
def fresh_optimizer(model: Any, *, built: bool) -> Iterator[None]:
    """Let `model` have, for a moment, its optimizer without anything learned.

    Args:
        model: any model; one that is not compiled is left as it is.
        built: whether the stand-in has slots (of zeros, mostly).

    Raises:
        ModelError: if the optimizer's config does not describe it.
    """
    trained = model.optimizer if model.compiled else None
    if trained is None:
        yield
        return
    try:
        fresh = type(trained).from_config(trained.get_config())
    except TypeError as error:
        raise ModelError(
            f"The optimizer {type(trained).__name__} cannot be made anew from its "
            f"config: {error}. Give it a `get_config` that tells its arguments."
        ) from error
    if built:
        fresh.build(model.trainable_variables)
    # Not `setattr`: that would make Keras track the stand-in.
    object.__setattr__(model, "optimizer", fresh)
    try:
        yield
    finally:
        object.__setattr__(model, "optimizer", trained)
