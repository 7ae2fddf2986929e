"""Saves models as Keras does, with an optimizer and a store of our choice."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py

# Private: `model.save` of Keras 3.15 takes neither a store nor another optimizer. No
# issue known.
from keras.src.saving.saving_lib import (  # noqa: TID251
    DiskIOStore,
    H5IOStore,
    _save_state,
    _serialize_model_as_json,
)

from kerasmem.errors import ModelError
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.layers import sublayers
from kerasmem.types import Model, Optimizer


def save_parts(
    model: Model,
    archive: zipfile.ZipFile,
    store: H5IOStore,
    optimizer: Optimizer | None = None,
    wrap: Callable[[str], str] = str,
) -> None:
    """Save a model: its weights to a store, everything else to an archive.

    Args:
        model: The model.
        archive: The archive.
        store: The store that the layers write to.
        optimizer: The optimizer to save in place of the model's own.
        wrap: Returns the JSON to write for that of the model's config.
    """
    with full_configs(sublayers(model)):
        config, metadata = _serialize_model_as_json(model)
        archive.writestr(
            "metadata.json", metadata, zipfile.ZIP_STORED
        )  # of a constant size
        archive.writestr("config.json", wrap(config))
        assets = DiskIOStore("assets", archive=archive, mode="w")
        saved_ids = set() if optimizer is None else {id(model.optimizer)}
        try:
            _save_state(model, store, assets, "", saved_ids)
            if optimizer is not None:
                _save_state(optimizer, store, assets, "optimizer", saved_ids)
        finally:
            assets.close()


def save_untrained(model: Model, path: Path) -> None:
    """Save a model to the file that Keras writes, without state of the optimizer.

    Keras mostly holds all weights of such a file in memory; here they go to the disk.

    Raises:
        ModelError: If the config of the optimizer does not describe it.
    """
    weights = path.with_suffix(".h5")
    optimizer = fresh_optimizer(model)
    with zipfile.ZipFile(path, "w") as archive:
        store = H5IOStore(weights, mode="w")
        # As Keras opens it in memory: a file that HDF5 opens itself is larger.
        store.h5_file.close()
        store.io_file = weights.open("w+b")
        store.h5_file = h5py.File(store.io_file, "w")
        try:
            save_parts(model, archive, store, optimizer)
        finally:
            store.close()
        archive.write(weights, "model.weights.h5")
    weights.unlink()


def fresh_optimizer(model: Model, built_for: Sequence[Any] | None = None) -> Any | None:
    """Return an optimizer with the settings of the model's own and nothing learned.

    Args:
        model: The model. Without an optimizer the result is `None`.
        built_for: Variables, or objects with their shapes, to create slots for.

    Raises:
        ModelError: If the config of the optimizer does not describe it.
    """
    if not model.compiled or model.optimizer is None:
        return None
    fresh = unbuilt_copy(model.optimizer)
    if built_for is not None:
        fresh.build(built_for)
    return fresh


def unbuilt_copy(optimizer: Optimizer) -> Any:
    """Return an unbuilt copy of an optimizer.

    Raises:
        ModelError: If the optimizer's config does not describe it.
    """
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The optimizer {type(optimizer).__name__} cannot be made anew from its "
            f"config: {error}. Next: give the class a `get_config` that returns all "
            "arguments of `__init__`."
        ) from error
