"""Saves models in the Keras format, with a custom optimizer and weight store."""

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

# Private: in Keras 3.15, `model.save` accepts no optimizer or weight store, and the
# cache of skip sets has no public access (docs/upstream.md).
from keras.src.backend.common import global_state  # noqa: TID251
from keras.src.saving.saving_lib import (  # noqa: TID251
    DiskIOStore,
    H5IOStore,
    _save_state,
    _serialize_model_as_json,
    get_attr_skipset,
)

from kerasmem.errors import ModelError
from kerasmem.graph.full_configs import full_configs
from kerasmem.graph.layers import sublayers
from kerasmem.types import Model, Optimizer


@contextmanager
def cached_skip_sets() -> Iterator[None]:
    """Caches the attributes that Keras skips when it saves or loads a layer.

    Keras 3.15 creates a new layer for every lookup, because it stores the result under
    another key than it reads (docs/upstream.md).
    """
    keys = {f"saving_attr_skiplist_{kind}": kind for kind in ("Layer", "Operation")}
    before = {key: global_state.get_global_attribute(key) for key in keys}
    for key, kind in keys.items():
        global_state.set_global_attribute(key, get_attr_skipset(kind))
    try:
        yield
    finally:
        for key, names in before.items():
            global_state.set_global_attribute(key, names)


def save_parts(
    model: Model,
    archive: zipfile.ZipFile,
    store: H5IOStore,
    optimizer: Optimizer | None = None,
    wrap: Callable[[str], str] = str,
) -> None:
    """Saves the weights of a model to a store and everything else to an archive.

    Saves `optimizer` instead of the model's optimizer. `wrap` converts the JSON of the
    config.
    """
    with cached_skip_sets(), full_configs(sublayers(model)):
        config, metadata = _serialize_model_as_json(model)
        archive.writestr("metadata.json", metadata, zipfile.ZIP_STORED)  # constant size
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
    """Saves a model to a Keras file without optimizer state.

    Writes the weights to disk. Keras usually holds all weights in memory.
    """
    weights = path.with_suffix(".h5")
    optimizer = fresh_optimizer(model)
    with zipfile.ZipFile(path, "w") as archive:
        store = H5IOStore(weights, mode="w")
        # Opened from Python, because a file opened by HDF5 is larger.
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
    """Returns a new optimizer with the same settings and no state, or None.

    Creates slots for `built_for`: variables, or objects with their shapes.
    """
    if not model.compiled or model.optimizer is None:
        return None
    fresh = unbuilt_copy(model.optimizer)
    if built_for is not None:
        fresh.build(built_for)
    return fresh


def unbuilt_copy(optimizer: Optimizer) -> Any:
    """Returns an unbuilt copy of an optimizer."""
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The optimizer {type(optimizer).__name__} cannot be created from its "
            f"config: {error}. Next: add a `get_config` to the class that returns all "
            "arguments of `__init__`."
        ) from error
