"""What a model's file is made of, to the byte."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StoredTensor:
    """One weight in a file.

    Args:
        name: the layer as it is named, and the number of the weight in it: Keras keeps
            no more of its name.
        shape: its shape.
        dtype: type of an entry.
        weight_bytes: bytes of it in RAM.
        file_bytes: bytes of the file that it takes.
        coding: how it is written: `"stored"`, `"deflated"`, `"shuffled, deflated"`,
            `"entropy"`, or `"zeros"` that take nothing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    weight_bytes: int
    file_bytes: int
    coding: str


@dataclass(frozen=True)
class FileContents:
    """A model's file, every byte of it counted once.

    Args:
        file_bytes: its size.
        tensors: the weights, those that take most of the file first.
        other: bytes of everything else by what they are: the members of the archive
            beside the weights, `"structure of the weights"`, `"archive"`.
    """

    file_bytes: int
    tensors: tuple[StoredTensor, ...]
    other: dict[str, int]
