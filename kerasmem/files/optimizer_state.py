"""What a model file holds of its optimizer, read from the file itself."""

from dataclasses import dataclass
from pathlib import Path

import h5py

from kerasmem.errors import ModelFileError
from kerasmem.files.members import DAMAGED, opened_weights

_GROUPS = ("optimizer", "optimizer_weights")  # in a .keras file and in an .h5 file


@dataclass(frozen=True)
class OptimizerState:
    """The variables of an optimizer: its slots, its step counter, its learning rate.

    Args:
        entries: number of their entries, 0 if the file holds none.
        bytes: what they take in RAM.
        is_fresh: whether it has made no step, as in the files that `km.save_model`
            writes: its slots are there, with nothing learned.
    """

    entries: int
    bytes: int
    is_fresh: bool


def optimizer_state(path: str | Path) -> OptimizerState | None:
    """Return what the file of a model holds of its optimizer.

    Returns:
        The state, or None for a file whose weights lie elsewhere than usual, or the
        folder of a SavedModel.

    Raises:
        ModelFileError: if it is damaged.
    """
    if Path(path).is_dir():
        return None
    try:
        if h5py.is_hdf5(path):
            with h5py.File(path, "r") as file:
                return _count(file)
        with opened_weights(Path(path)) as file:
            return None if file is None else _count(file)
    except DAMAGED as error:
        raise ModelFileError(f"{str(path)!r} is damaged: {error}") from error


def _count(file: h5py.File) -> OptimizerState:
    arrays: list[h5py.Dataset] = []

    def keep(_: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            arrays.append(item)

    for name in _GROUPS:
        group = file.get(name)
        if isinstance(group, h5py.Group):
            group.visititems(keep)
    counters = [a for a in arrays if a.shape == () and a.dtype.kind in "iu"]
    return OptimizerState(
        entries=sum(array.size for array in arrays),
        bytes=sum(array.nbytes for array in arrays),
        is_fresh=bool(counters) and not any(counter[()] for counter in counters),
    )
