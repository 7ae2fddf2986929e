"""A copy of a model with narrower weights."""

import json
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.clone import clone, live_objects


def narrow_weights(model: Any, dtype: str = "float32") -> Any:
    """Return a copy of `model` whose float64 weights and computations are narrower.

    Args:
        model: a built `keras.Model`; it is left alone.
        dtype: the type in place of float64.

    Returns:
        The copy, compiled with the same settings and a fresh optimizer; an equal copy
        if nothing in the model is float64.

    Raises:
        ConfigError: if `dtype` is no float type that is narrower than float64.
        ModelError: if the model cannot be copied.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> narrow_weights(model).layers[0].kernel.dtype
        'float32'
    """
    if dtype not in {"float32", "bfloat16", "float16"}:
        raise ConfigError(
            f"`dtype` is 'float32', 'bfloat16' or 'float16'. Received: {dtype=}."
        )
    original = clone(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        original.save(path)
        _rewrite_config(path, dtype)
        with warnings.catch_warnings():
            # The optimizer's slots are not in the file, so that it starts afresh.
            warnings.filterwarnings("ignore", message="Skipping variable loading for")
            # A file of our own, made of a live object a moment ago.
            return keras.models.load_model(
                path, custom_objects=live_objects(model), safe_mode=False
            )


def _rewrite_config(path: Path, dtype: str) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = _narrowed(json.loads(members["config.json"]), dtype)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _narrowed(config: Any, dtype: str) -> Any:
    if isinstance(config, list):
        return [_narrowed(item, dtype) for item in config]
    if not isinstance(config, dict):
        return config
    narrowed = {key: _narrowed(value, dtype) for key, value in config.items()}
    if config.get("dtype") == "float64":
        narrowed["dtype"] = dtype
    is_policy = config.get("class_name") == "DTypePolicy"
    if is_policy and config["config"].get("name") == "float64":
        narrowed["config"] = {**config["config"], "name": dtype}
    return narrowed
