"""Saving a model as a `.keras` file that is really smaller.

Keras stores the members of a `.keras` archive uncompressed, so a pruned model's zeros
take their full size. Deflated members are read by stock `keras.models.load_model` just
as well, bit for bit.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import keras

from kerasmem.errors import ConfigError
from kerasmem.files.atomic import replacing
from kerasmem.files.repack import Coding, repack
from kerasmem.graph.optimizer import fresh_optimizer


def save_model(
    model: Any,
    path: str | Path,
    *,
    include_optimizer: bool = False,
    coding: Coding = "deflate",
) -> None:
    """Save `model` as a `.keras` file, whole or not at all.

    What was written is read back and compared before it takes the place of a file.

    Args:
        model: a built Keras model.
        path: where to; ends in `.keras`. A file that is there is replaced.
        include_optimizer: False saves the optimizer as it was before the first step:
            its settings are kept, what it has learned (two floats per weight with
            Adam) is not.
        coding: `"deflate"` for a file that stock Keras opens wherever it knows the
            layers; `"entropy"` for a smaller one, each weight near its entropy, that
            Keras opens after `import kerasmem`; `"stored"` for one as large as its
            weights, which `km.load_model(path, memory_map=True)` need not read.

    Raises:
        ConfigError: if `path` does not end in `.keras`, `model` is no model, or the
            coding is not known.
        ModelError: if the optimizer cannot be made anew.
        OutputError: if the file cannot be written.
    """
    path = Path(path)
    if not isinstance(model, keras.Model):
        raise ConfigError(f"Expected a keras.Model. Received: model={model!r}.")
    if path.suffix != ".keras":
        raise ConfigError(
            "A model is saved as a file that ends in .keras. "
            f"Received: path={str(path)!r}."
        )
    check_coding(coding)
    with replacing(path) as written:
        stored = written.with_name("stored.keras")
        with ExitStack() as scope:
            if not include_optimizer:
                # Built all the same: stock Keras warns about a file whose optimizer
                # has no slots, and slots of zeros deflate to next to nothing.
                scope.enter_context(fresh_optimizer(model, built=True))
            model.save(stored)
        repack(stored, written, coding=coding)


def check_coding(coding: Any) -> None:
    """Raise `ConfigError` if there is no such coding."""
    if coding not in get_args(Coding):
        raise ConfigError(
            f"coding is one of {get_args(Coding)}. Received: coding={coding!r}."
        )


def save_stored(model: Any, path: str | Path) -> None:
    """Save `model` as Keras itself does, without any state of the optimizer.

    Its size is what a smaller file is fairly compared with.
    """
    with fresh_optimizer(model, built=False):
        model.save(path)
