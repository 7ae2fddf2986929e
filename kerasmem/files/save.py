"""Saving a model as a `.keras` file that is really smaller.

Keras stores the members of a `.keras` archive uncompressed, so a pruned model's zeros
take their full size. Deflated members are read by stock `keras.models.load_model` just
as well, bit for bit.
"""

from pathlib import Path
from typing import Any, get_args

import keras

from kerasmem.errors import ConfigError, as_received
from kerasmem.files.atomic import replacing
from kerasmem.files.opens import check_opens
from kerasmem.files.weights import Coding
from kerasmem.files.write import WrittenModel, checking, write_model


def save_model(
    model: Any,
    path: str | Path,
    *,
    include_optimizer: bool = False,
    coding: Coding = "deflate",
) -> None:
    """Save `model` as a `.keras` file, whole or not at all.

    What was written is read back, and opened, before it takes the place of a file: its
    config has to give this model, and each weight has to find its entry in the file,
    with its shape, type and value. That takes the memory of one weight at a time; but
    a model with a layer or model of a class of your own that this process has not saved
    before is loaded whole, once. Classes and functions are those of `model`, registered
    or not.

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
        OutputError: if the file cannot be written, or could not be opened.
    """
    path = Path(path)
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"Expected a keras.Model. Received: model={as_received(model)}."
        )
    if path.suffix != ".keras":
        raise ConfigError(
            "A model is saved as a file that ends in .keras. "
            f"Received: path={str(path)!r}."
        )
    check_coding(coding)
    with replacing(path) as file:
        made = write_model(model, file, coding, include_optimizer=include_optimizer)
        check(model, file, made)


def check(model: Any, path: Path, written: WrittenModel) -> None:
    """Read what was written of a model back, and open it.

    Args:
        model: the one that was saved.
        path: the file.
        written: what went there.

    Raises:
        ModelError: if two classes of the model have one name.
        OutputError: if the file is not as it was written, or cannot be opened.
    """
    with checking(path, written):
        check_opens(model, path, written)


def check_coding(coding: Any) -> None:
    """Raise `ConfigError` if there is no such coding."""
    if coding not in get_args(Coding):
        raise ConfigError(
            f"coding is one of {get_args(Coding)}. Received: coding={coding!r}."
        )
