"""Texts and token ids as samples for language models.

The label of each position is the next token id. Positions without a next id and padded
positions have weight 0.
"""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np

from kerasmem.errors import ConfigError, DataError
from kerasmem.files.data.check import input_names
from kerasmem.files.data.source import check_sizes
from kerasmem.types import Dataset, Model

_DAMAGED = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
"""Exceptions for a damaged, unsupported or password-protected archive."""

LENGTH = 256
"""Default number of tokens per row."""

_IDS, _MASK = "token_ids", "padding_mask"
_FORMS = (
    "Expected: a .txt file in UTF-8, an .npy file of token ids, or an .npz file with "
    "token_ids and optionally padding_mask."
)


def is_token_file(path: str | Path) -> bool:
    """Returns whether a file contains text or token ids, by its suffix or arrays."""
    suffix = Path(path).suffix
    if suffix != ".npz":
        return suffix in (".txt", ".npy")
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{_IDS}.npy" in archive.namelist()
    except Exception:  # noqa: BLE001 - reading the samples raises the precise error
        return False


def are_texts(data: Dataset) -> bool:
    """Returns whether `data` is a list or tuple of strings, or a file of tokens."""
    if isinstance(data, str | Path):
        return is_token_file(data)
    is_sequence = isinstance(data, list | tuple) and len(data) > 0
    return is_sequence and all(isinstance(text, str) for text in data)


def check_are_texts(data: Dataset, options: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an option of texts, by its name, with other data."""
    for name, value in options.items():
        if value and not are_texts(data):
            raise ConfigError(
                f"{name} is only valid for text or token ids. Received: --data {data}."
            )


def check_texts_suffice(data: Dataset, requests: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a request that needs labels, by its name, with texts."""
    for name, value in requests.items():
        if value and are_texts(data):
            raise ConfigError(
                "Text and token ids are only used for calibration and for perplexity. "
                f"Received: {name} with --data {data}. Next: pass samples with "
                f"labels, or omit {name}."
            )


def as_samples(model: Model, *datasets: Dataset) -> list[Any]:
    """Returns datasets, texts as samples of token ids, see `token_samples`.

    Other data is unchanged, and so are strings for a model that takes strings.

    Raises `DataError` if the model cannot take texts.
    """
    inputs = getattr(model, "inputs", None) or ()
    if any(tensor.dtype == "string" for tensor in inputs):
        return list(datasets)
    return [token_samples(x, model) if are_texts(x) else x for x in datasets]


def token_samples(
    source: str | Path | Sequence[str], model: Model, length: int | None = None
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns texts or a file as `(x, y, sample_weight)` for a language model.

    The tokenizer of the model converts text to ids. The ids of several texts are
    joined. Ids with one axis are split into rows, and the last row is padded. If the
    preprocessor of the model adds a start token, each row begins with a start token.
    Ids with two axes are used as rows. The default `length` is the fixed length of the
    model, or at most 256.

    Labels and weights (0 or 1) have the shape (rows, length).

    Raises `DataError` if there are no ids, the ids do not fit the model, or the model
    has no tokenizer for text.
    """
    preprocessor = cast(Any, getattr(model, "preprocessor", None))
    if isinstance(source, str | Path):
        name, (ids, mask) = str(source), _read(Path(source), model, preprocessor)
    else:
        name, (ids, mask) = "`data`", _of_texts(source, model, preprocessor)
    ids_name, mask_name = _inputs(model)
    if ids.ndim == 1:
        start = None
        if getattr(preprocessor, "add_start_token", False):
            start = preprocessor.tokenizer.start_token_id
        ids, mask = _rows(ids, mask, _length(model, preprocessor, length), start)
    _check(ids, mask, model, name)
    ahead = np.pad(ids[:, 1:], [(0, 0), (0, 1)])
    weight = np.pad(mask[:, 1:], [(0, 0), (0, 1)]) & mask
    x: Any = ids
    if mask_name is not None:
        x = {ids_name: ids, mask_name: mask}
    elif isinstance(getattr(model, "input", None), dict):
        x = {ids_name: ids}
    return x, ahead, weight.astype("float32")


def _inputs(model: Model) -> tuple[str, str | None]:
    inputs = getattr(model, "inputs", None)
    if not inputs:  # a subclassed model, which may still fail when called
        return _IDS, None
    names = input_names(model)
    masks = [name for name in names if "mask" in name.lower()]
    others = [name for name in names if name not in masks]
    shapes = dict(zip(names, (tensor.shape for tensor in inputs), strict=True))
    if len(others) != 1 or len(masks) > 1 or any(len(s) != 2 for s in shapes.values()):
        raise DataError(
            f"The model {model.name!r} takes no tokens. Expected: one input of token "
            "ids, (batch, length), and at most one padding mask. Received: "
            + ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
            + "."
        )
    return others[0], masks[0] if masks else None


def _read(path: Path, model: Model, preprocessor: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        if path.suffix != ".txt":
            return _arrays(path)
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, EOFError, *_DAMAGED) as error:
        raise DataError(f"{path} contains no tokens: {error}. {_FORMS}") from error
    return _of_texts([text], model, preprocessor)


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with path.open("rb") as file:  # closed even if NumPy fails
        check_sizes(file)
        arrays = np.load(file, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            return arrays, np.ones(arrays.shape, bool)
        ids = arrays[_IDS]
        mask = arrays[_MASK] if _MASK in arrays.files else np.ones(ids.shape)
        return ids, mask.astype(bool)


def _of_texts(
    texts: Sequence[str], model: Model, preprocessor: Any
) -> tuple[np.ndarray, np.ndarray]:
    tokenizer = getattr(preprocessor, "tokenizer", None)
    if tokenizer is None:
        raise DataError(
            f"Expected token ids, because the model {model.name!r} has no preprocessor "
            "with a tokenizer. Received: text. Next: data=task.preprocessor(texts), "
            "with the task of the tokenizer, or an .npy file of token ids."
        )
    _check_predicts_tokens(model)
    parts = [np.asarray(keras.ops.convert_to_numpy(tokenizer(t))) for t in texts]
    ids = np.concatenate(parts)
    return ids, np.ones(ids.shape, bool)


def _check_predicts_tokens(model: Model) -> None:
    outputs: Any = getattr(model, "outputs", None) or ()
    if any(len(output.shape) != 3 for output in outputs):
        raise DataError(
            f"Expected token ids for the task {model.name!r}, which does not predict "
            "tokens. Received: text. Next: data=task.preprocessor(texts, labels)."
        )


def _length(model: Model, preprocessor: Any, length: int | None) -> int:
    inputs = getattr(model, "inputs", None)
    model_length = inputs[0].shape[1] if inputs else None
    if length is not None and model_length not in (None, length):
        raise DataError(
            f"The model {model.name!r} takes rows of {model_length} tokens. "
            f"Received: length={length}."
        )
    most = getattr(preprocessor, "sequence_length", None) or LENGTH
    return model_length or length or min(LENGTH, most)


def _rows(
    ids: np.ndarray, mask: np.ndarray, length: int, start: int | None
) -> tuple[np.ndarray, np.ndarray]:
    if ids.shape != mask.shape:
        return ids, mask  # rejected by `_check`
    own = max(length - (start is not None), 1)
    count = -(-len(ids) // own)
    missing = count * own - len(ids)
    rows = np.pad(ids, (0, missing)).reshape(count, own)
    mask = np.pad(mask, (0, missing)).reshape(count, own)
    if start is not None:
        rows = np.pad(rows, [(0, 0), (1, 0)], constant_values=start)
        mask = np.pad(mask, [(0, 0), (1, 0)], constant_values=True)
    return rows, mask


def _check(ids: np.ndarray, mask: np.ndarray, model: Model, name: str) -> None:
    is_rows = ids.ndim == 2 and ids.shape == mask.shape and ids.dtype.kind in "iu"
    if not is_rows:
        raise DataError(
            f"{name} contains no tokens: ids must be integers with one or two axes, "
            "with a mask of the same shape. Received: "
            f"{ids.dtype} of shape {ids.shape}, a mask of shape {mask.shape}. {_FORMS}"
        )
    if not (mask[:, 1:] & mask[:, :-1]).any():
        raise DataError(
            f"{name} must have at least two tokens in a row, because each token is "
            f"predicted from the tokens before it. Received: {int(mask.sum())} tokens."
        )
    check_known(ids, model, name)


def check_known(ids: np.ndarray, model: Model, name: str) -> None:
    """Raises `DataError` for token ids outside the vocabulary of the model."""
    outputs: Any = getattr(model, "outputs", None) or ()
    one = len(outputs) == 1 and len(outputs[0].shape) == 3
    words = outputs[0].shape[-1] if one else None
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (words is not None and high >= words):
        raise DataError(
            f"The vocabulary of the model {model.name!r} has {words or 'some'} tokens, "
            f"numbered from 0. Received: ids from {low} to {high} in {name}."
        )
