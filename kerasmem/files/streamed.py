"""A model whose weights are far larger than their file, read one after the other.

Keras reads all weights of a file at once, whatever size they inflate to, and compares
them with the model afterwards. Here it loads the model from a small file that has the
numbers of the arrays in their place; each is read when its turn comes, if it is no
larger than the largest weight of the model.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from kerasmem.files.coded_model import is_coded, unwrapped, write_skeleton
from kerasmem.files.datasets import Dataset, datasets, whole_array
from kerasmem.files.declared import inflates
from kerasmem.files.members import opened_weights
from kerasmem.files.weights import uncoded

_NAME = "StreamedModel"


@contextmanager
def openable(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the file that Keras loads a model from, and custom objects for that.

    Args:
        path: a `.keras` file. Unless its weights inflate, it is given itself.
    """
    with opened_weights(path) as weights:
        if weights is not None and inflates(path, weights):
            found = datasets(weights)
            with tempfile.TemporaryDirectory() as folder:
                small = Path(folder) / path.name
                write_skeleton(path, small, [each.name for each in found], _NAME)
                yield small, {f"kerasmem>{_NAME}": _Streamed(weights, found)}
            return
    yield path, {}


class _Streamed:
    """What a skeleton's config means by the model; see `CodedModel`."""

    def __init__(self, weights: h5py.File, found: Sequence[Dataset]) -> None:
        self._weights, self._found = weights, found

    def from_config(self, config: dict[str, Any]) -> Any:
        """Return the model, whose weights are read one by one."""
        coded = is_coded(config["model"])
        inner = config["model"]["config"] if coded else config

        def read(number: np.ndarray, most_bytes: int) -> np.ndarray:
            each = self._found[int(number)]
            dataset = self._weights[each.name]
            array = whole_array(dataset, self._weights, most_bytes)
            if coded:
                return uncoded(array, most_bytes)
            return np.asarray(array).view(each.dtype)

        return unwrapped(inner, read)
