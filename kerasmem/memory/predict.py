"""Predictions written to disk batch by batch, so that memory stays flat."""

import json
import os
import stat
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasmem.checks import Whole
from kerasmem.errors import DataError, ModelError, OutputError
from kerasmem.files.atomic import new_folder, replacing
from kerasmem.files.data.forms import inputs_from
from kerasmem.files.data.source import check_ends
from kerasmem.types import Dataset, Tensors


def predict(
    model: keras.Model,
    data: Dataset,
    *,
    output: str | os.PathLike[str],
    batch_size: int = 32,
) -> Any:
    """Predict to disk and return the predictions memory-mapped.

    Each batch is written as soon as it is computed, so memory holds one batch at a
    time. The output appears once all batches are written.

    Args:
        model: A `keras.Model`.
        data: `x`, `(x, y)`, a `tf.data.Dataset`, a `keras.utils.PyDataset` or a
            generator. Labels are ignored.
        output: Path of the `.npy` file. An existing file is replaced. For models with
            several outputs, path of a new folder. The folder contains one file per
            output (`0.npy`, `1.npy`, ...) and the output names in `outputs.json`.
        batch_size: Number of samples per batch, at least 1 (default: 32). Batched data
            keeps its batch size.

    Returns:
        Memory-mapped arrays of shape `(samples, ...)`, in the structure that
        `model.predict` returns. bfloat16 outputs are returned as float32.

    Raises:
        ConfigError: If `batch_size` is not an integer of at least 1.
        DataError: If the data has no samples.
        ModelError: If the outputs are not numeric arrays of equal length and type.
        OutputError: If the output cannot be written, or if `output` is a folder that
            is not empty.

    Example:
        >>> import tempfile, kerasmem as km
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "predictions.npy")
        ...     km.predict(model, np.zeros((100, 2), "float32"), output=path).shape
        (100, 3)
    """
    batch_size = Whole(1).check("predict", "batch_size", batch_size)
    check_ends(data, "the prediction")
    batches = map(model.predict_on_batch, inputs_from(data, 0, batch_size))
    first = next(batches, None)
    if first is None:
        raise DataError("Expected at least one sample. Received: empty data.")
    structure = keras.tree.map_structure(lambda _: 0, first)
    batches = chain([first], batches)
    del first  # Only one batch is in memory at a time.
    paths = keras.tree.flatten_with_path(structure)
    names, target = [[*map(str, path)] for path, _ in paths], Path(output)
    is_folder = len(names) > 1
    _check_output(target, is_folder=is_folder)
    files = [f"{number}.npy" if is_folder else "" for number in range(len(names))]
    with new_folder(target) if is_folder else replacing(target) as part:
        _write([part / file for file in files], batches)
        if is_folder:
            (part / "outputs.json").write_text(json.dumps({"names": names}))
    arrays = [np.load(target / file, mmap_mode="r") for file in files]
    return keras.tree.pack_sequence_as(structure, arrays)


def _write(paths: list[Path], batches: Iterable[Tensors]) -> None:
    rows, like = 0, []
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for outputs in batches:
            arrays = _arrays(outputs, like)
            if not like:
                like = [np.empty_like(array[:0]) for array in arrays]
                _write_headers(files, like, 0)
            for file, array in zip(files, arrays, strict=True):
                file.write(array.tobytes())
            rows += len(arrays[0])
        _write_headers(files, like, rows)


def _check_output(target: Path, *, is_folder: bool) -> None:
    try:
        mode = target.lstat().st_mode
        is_empty = stat.S_ISDIR(mode) and not any(target.iterdir())
        is_usable = is_empty if is_folder else stat.S_ISREG(mode)
    except FileNotFoundError:
        is_usable = target.parent.is_dir()
    except (OSError, ValueError):  # for example, the name is too long
        is_usable = False
    if not is_usable:
        raise OutputError(
            f"Expected output to be a new {'folder' if is_folder else 'file'} in an "
            f"existing folder. Received: output={str(target)!r}. Next: choose another "
            "path, or remove the existing output."
        )


def _arrays(outputs: Tensors, like: list[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs as arrays, checked against the `like` of earlier batches."""
    arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(outputs)]
    # NumPy cannot load bfloat16.
    arrays = [a.astype(np.float32) if a.dtype.kind == "V" else a for a in arrays]
    is_numeric = all(a.dtype.kind in "biufc" and a.ndim for a in arrays)
    has_one_length = len({array.shape[:1] for array in arrays}) == 1
    if not (is_numeric and has_one_length and _forms(like or arrays) == _forms(arrays)):
        raise ModelError(
            "Expected numeric outputs with one length in each batch, and the same row "
            f"shapes and types in all batches. Received: {_forms(arrays)} after "
            f"{_forms(like)}. Next: pad the inputs to one length."
        )
    return arrays


def _forms(arrays: list[np.ndarray]) -> list[tuple[str, tuple[int, ...]]]:
    return [(array.dtype.str, array.shape[1:]) for array in arrays]


def _write_headers(files: list[Any], like: list[np.ndarray], rows: int) -> None:
    for file, array in zip(files, like, strict=True):
        form = {"descr": array.dtype.str, "fortran_order": False}
        form |= {"shape": (rows, *array.shape[1:])}
        file.seek(0)
        np.lib.format.write_array_header_1_0(file, form)
