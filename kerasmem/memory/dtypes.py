"""Finds weights and arrays whose dtype is wider than necessary."""

import json
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.checks import OneOf, invalid
from kerasmem.errors import ConfigError, DataError, ModelError
from kerasmem.files.data import is_array_data, load_data
from kerasmem.files.data.forms import first_samples, named_leaves
from kerasmem.graph.clone import clone, live_objects
from kerasmem.graph.full_configs import keep_omitted
from kerasmem.graph.kernels import is_embedding
from kerasmem.graph.layers import check_built, sublayers, weights
from kerasmem.records import WideType
from kerasmem.types import Dataset, Model

_CHUNK = 2**22  # Number of entries checked at once.
_INTEGERS = ("uint8", "int16", "int32")


@dataclass(frozen=True)
class DtypeReport:
    """Weights and arrays whose dtype is wider than their values need.

    Args:
        wide: A `WideType` per array: its location, dtype, narrower dtype, bytes saved
            by the narrower dtype, and the required change.
        model: The inspected `keras.Model`, or `None`.
    """

    wide: tuple[WideType, ...]
    model: Any = field(repr=False)

    def narrow_model(self, dtype: str = "float32") -> Any:
        """Return a copy of the model with `dtype` in place of float64.

        Args:
            dtype: `"float32"`, `"bfloat16"` or `"float16"`. Defaults to `"float32"`.

        Returns:
            The copy, compiled with the same settings and a new optimizer. Without
            float64 weights or layers, the copy is identical.

        Raises:
            ConfigError: If `dtype` has another value, or no model was inspected.
            ModelError: If the model cannot be copied, or its classes fix float64.
        """
        rule = OneOf(("float32", "bfloat16", "float16"))
        rule.check("narrow_model", "dtype", dtype)
        if self.model is None:
            raise invalid("inspect_dtypes", "model", None, "a model, to narrow it")
        original = clone(self.model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            original.save(path)
            _rewrite_config(path, dtype)
            with warnings.catch_warnings():
                # The file contains no optimizer variables, so the optimizer starts new.
                message = "Skipping variable loading for"
                warnings.filterwarnings("ignore", message=message)
                # Safe mode is unnecessary: the file was just written from a live model.
                custom_objects = live_objects(self.model)
                copy = keras.models.load_model(
                    path, custom_objects=custom_objects, safe_mode=False
                )
        _check_narrow(copy, self.model.name)
        keep_omitted(sublayers(copy))
        return copy


def inspect_dtypes(model: Model = None, data: Dataset = None) -> DtypeReport:
    """Find the weights and arrays that a narrower dtype could hold without loss.

    | dtype | reason | narrower dtype |
    |---|---|---|
    | float64 weight or array | Keras trains in float32 | float32 |
    | integer values stored as floats | integers suffice | uint8, int16 or int32 |
    | floats from 0 to 1 in steps of 1/255 | the values are images | uint8 |
    | 64-bit integers, such as inputs of an Embedding | all are small | int32 |

    All values of an array are read, a few megabytes at a time. For batched data, only
    the first batch is read. The model and the data are not changed.

    Args:
        model: A built `keras.Model`, or `None`.
        data: Samples in any form that `fit` accepts, the path of a data file, or
            `None`.

    Returns:
        A `DtypeReport`. `report.wide` has one entry per weight or array, and
        `report.narrow_model()` returns a copy of the model in float32.

    Raises:
        ConfigError: If both arguments are `None`.
        DataError: If the data contains no arrays of numbers.
        ModelError: If the model has not created its weights.

    Example:
        >>> import numpy as np
        >>> images = np.random.default_rng(0).integers(0, 256, (8, 28, 28))
        >>> inspect_dtypes(data=images.astype("float32")).wide[0].enough
        'uint8'
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> inspect_dtypes(model).narrow_model().layers[0].kernel.dtype
        'float32'
    """
    if model is None and data is None:
        raise ConfigError("Expected: a model, data, or both. Received: neither.")
    if isinstance(data, (str, Path)):
        data = load_data(data).train
    wide = [*_of_weights(model), *_of_inputs(model)] if model is not None else []
    wide += _of_data(data) if data is not None else []
    return DtypeReport(tuple(wide), model)


def _of_weights(model: Model) -> Iterator[WideType]:
    check_built(model)
    for weight in weights(model):
        if str(weight.variable.dtype) == "float64":
            yield WideType(
                f"weight {weight.path}",
                "float64",
                "float32",
                weight.nbytes // 2,
                "Keras trains in float32. Call narrow_model() of the report.",
            )


def _of_inputs(model: Model) -> list[WideType]:
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
            "An Embedding also accepts int32: Input(dtype='int32'). The bytes saved "
            "are per sample.",
        )
        for tensor in wide
    ]


def _of_data(data: Dataset) -> Iterator[WideType]:
    scope = "" if is_array_data(data) else " (in the first batch)"
    for role, part in first_samples(data).items():
        for name, leaf in named_leaves(part).items():
            array = leaf if isinstance(leaf, np.ndarray) else _as_numpy(leaf)
            dtype_and_reason = _enough(array)
            if dtype_and_reason is not None:
                enough, reason = dtype_and_reason
                saved_bytes = array.nbytes - array.size * np.dtype(enough).itemsize
                where = f"data {role} {name}".strip() + scope
                yield WideType(where, str(array.dtype), enough, saved_bytes, reason)


def _as_numpy(leaf: Any) -> np.ndarray:
    try:
        return keras.ops.convert_to_numpy(leaf)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"Expected arrays of numbers. Received: {type(leaf).__name__}."
        ) from error


def _enough(array: np.ndarray) -> tuple[str, str] | None:
    if array.size == 0 or array.dtype.kind not in "fiu" or array.dtype.itemsize < 4:
        return None
    integers = _integers_for(array, scale=1)
    if array.dtype.kind == "f":
        if integers is not None:
            return integers, f"All values are integers. Use astype({integers!r})."
        if _integers_for(array, scale=255) == "uint8" and array.max() <= 1:
            return "uint8", (
                "All values are multiples of 1/255. Keep uint8 and add a "
                "Rescaling(1 / 255) layer."
            )
        floatx = keras.config.floatx()
        if np.dtype(floatx).itemsize < array.dtype.itemsize:
            return floatx, f"Keras trains in {floatx}. Use astype({floatx!r})."
        return None
    if integers is not None and np.dtype(integers).itemsize < array.dtype.itemsize:
        return integers, f"All values fit. Use astype({integers!r})."
    return None


def _integers_for(array: np.ndarray, scale: int) -> str | None:
    low, high = np.inf, -np.inf
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK] * (scale if scale == 1 else float(scale))
        whole = np.rint(chunk) if chunk.dtype.kind == "f" else chunk
        if not np.allclose(chunk, whole, rtol=0, atol=1e-4 if scale > 1 else 0):
            return None
        ends = whole.min(), whole.max()
        if not np.isfinite(ends).all():
            return None
        low, high = min(low, int(ends[0])), max(high, int(ends[1]))
    ranges = ((name, np.iinfo(name)) for name in _INTEGERS)
    return next((n for n, info in ranges if info.min <= low and high <= info.max), None)


def _check_narrow(copy: Model, name: str) -> None:
    wide = [x for x in sublayers(copy) if "float64" in (x.dtype, x.compute_dtype)]
    if wide:
        raise ModelError(
            f"The class of the model {name!r} creates float64 layers. Expected: "
            "layers whose dtype is in the config of the model. Received: "
            f"{', '.join(repr(x.name) for x in wide)}. Next: make their dtype an "
            "argument of the class and return it from get_config."
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
