"""Whether something is a model with weights."""

from typing import Any

import keras

from kerasmem.errors import ConfigError, ModelError, as_received


def check_built(model: Any) -> None:
    """Raise unless `model` is a model that has its weights.

    Raises:
        ConfigError: if it is no `keras.Model`.
        ModelError: if it has no weights yet.
    """
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"Expected a keras.Model. Received: model={as_received(model)}."
        )
    if not model.built:
        raise ModelError(
            f"The model {model.name!r} has no weights yet. Build it first: call it on "
            "a batch, or give it an Input."
        )
