"""Types that are wider than they need to be, and a copy of a model without them."""

import json
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.checks import OneOf
from kerasmem.errors import ConfigError, DataError
from kerasmem.files.data import is_array_data, load_data
from kerasmem.files.data.forms import first_samples, named_leaves
from kerasmem.graph.clone import clone, live_objects
from kerasmem.graph.kernels import is_embedding
from kerasmem.graph.layers import check_built, weights
from kerasmem.records import WideType

_CHUNK = 2**22  # entries looked at in one go
_INTEGERS = ("uint8", "int16", "int32")


def find_wide_types(model: Any = None, data: Any = None) -> list[WideType]:
    """Find the weights and arrays that a narrower dtype would hold as well.

    | what | why | what would do |
    |---|---|---|
    | float64 weight or array | Keras trains in float32 | float32 |
    | floats that are all whole numbers | they are integers | uint8, int16 or int32 |
    | floats from 0 to 1 in steps of 1/255 | they are images | uint8 |
    | 64-bit integers, such as those fed to an Embedding | all are small | int32 |

    Arrays are looked at whole, a few megabytes at a time; of batched data the first
    batch.

    Args:
        model: a built `keras.Model`, or None.
        data: samples in any form that `fit` takes, or a path as in every data
            argument, or None.

    Returns:
        A `WideType` for each: where it is, its dtype, the narrower one, the bytes that
        this saves, and what to do; an empty list if there is none.

    Raises:
        ConfigError: if neither is given.
        DataError: if the data holds no arrays of numbers.
        ModelError: if the model has no weights yet.

    Example:
        >>> import numpy as np
        >>> images = np.random.default_rng(0).integers(0, 256, (8, 28, 28))
        >>> find_wide_types(data=images.astype("float32"))[0].enough
        'uint8'
    """
    if model is None and data is None:
        raise ConfigError("Give a model, data, or both. Received: neither.")
    if isinstance(data, (str, Path)):
        data = load_data(data).train
    found = list(_of_weights(model)) if model is not None else []
    found += _of_inputs(model) if model is not None else []
    return found + (list(_of_data(data)) if data is not None else [])


def _of_weights(model: Any) -> Iterator[WideType]:
    check_built(model)
    for weight in weights(model):
        if str(weight.variable.dtype) == "float64":
            yield WideType(
                f"weight {weight.path}",
                "float64",
                "float32",
                weight.nbytes // 2,
                "Training in float32 is the rule: km.memory.narrow_weights(model).",
            )


def _of_inputs(model: Any) -> list[WideType]:
    rows = [w.variable.shape[0] for w in weights(model) if is_embedding(w)]
    wide = [t for t in getattr(model, "inputs", ()) if str(t.dtype) == "int64"]
    if not rows or max(rows) > np.iinfo("int32").max:
        return []
    return [
        WideType(
            f"input {tensor.name}",
            "int64",
            "int32",
            4 * int(np.prod([size for size in tensor.shape[1:] if size])),
            "An Embedding looks up int32 as well: Input(dtype='int32'). The bytes are "
            "those of one sample.",
        )
        for tensor in wide
    ]


def _of_data(data: Any) -> Iterator[WideType]:
    scope = "" if is_array_data(data) else " (in the first batch)"
    for role, part in first_samples(data).items():
        for name, leaf in named_leaves(part).items():
            array = leaf if isinstance(leaf, np.ndarray) else _as_numpy(leaf)
            found = _enough(array)
            if found is not None:
                enough, reason = found
                saved = array.nbytes - array.size * np.dtype(enough).itemsize
                where = f"data {role} {name}".strip() + scope
                yield WideType(where, str(array.dtype), enough, saved, reason)


def _as_numpy(leaf: Any) -> np.ndarray:
    try:
        return keras.ops.convert_to_numpy(leaf)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected arrays of numbers. Received: {type(leaf).__name__}."
        ) from error


def _enough(array: np.ndarray) -> tuple[str, str] | None:
    """Return the type that holds every entry, and why, or None for the own one."""
    if array.size == 0 or array.dtype.kind not in "fiu" or array.dtype.itemsize < 4:
        return None
    integers = _integers_for(array, scale=1)
    if array.dtype.kind == "f":
        if integers is not None:
            return integers, f"All are whole numbers: astype({integers!r})."
        if _integers_for(array, scale=255) == "uint8" and array.max() <= 1:
            return "uint8", (
                "All are steps of 1/255: keep uint8 and let a Rescaling(1 / 255) layer "
                "divide."
            )
        floatx = keras.config.floatx()
        if np.dtype(floatx).itemsize < array.dtype.itemsize:
            return floatx, f"Keras trains in {floatx}: astype({floatx!r})."
        return None
    if integers is not None and np.dtype(integers).itemsize < array.dtype.itemsize:
        return integers, f"All fit: astype({integers!r})."
    return None


def _integers_for(array: np.ndarray, scale: int) -> str | None:
    """Return the narrowest integer type of all entries times `scale`, or None."""
    low, high = np.inf, -np.inf
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK] * (scale if scale == 1 else float(scale))
        whole = np.rint(chunk) if chunk.dtype.kind == "f" else chunk
        if not np.allclose(chunk, whole, rtol=0, atol=1e-4 if scale > 1 else 0):
            return None
        low, high = min(low, whole.min()), max(high, whole.max())
    ranges = ((name, np.iinfo(name)) for name in _INTEGERS)
    return next((n for n, info in ranges if info.min <= low and high <= info.max), None)


def narrow_weights(model: Any, dtype: str = "float32") -> Any:
    """Return a copy of `model` whose float64 weights and computations are narrower.

    Args:
        model: a built `keras.Model`; it is left alone.
        dtype: the type in place of float64: `"float32"`, `"bfloat16"` or `"float16"`.

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
    OneOf(("float32", "bfloat16", "float16")).check("narrow_weights", "dtype", dtype)
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

    def narrowed(part: dict[str, Any]) -> dict[str, Any]:
        is_policy = part.get("class_name") == "DTypePolicy"
        if is_policy and part["config"].get("name") == "float64":
            part["config"]["name"] = dtype
        return part | ({"dtype": dtype} if part.get("dtype") == "float64" else {})

    config = json.loads(members["config.json"], object_hook=narrowed)
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
