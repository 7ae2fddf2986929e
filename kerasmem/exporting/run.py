"""An exported file, run on samples as it takes them, and compared with its model."""

from collections.abc import Callable, Sequence

import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.errors import ModelError
from kerasmem.exporting.litert import LiteRT

Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]
"""A file: takes an array for each name of an input, returns the outputs in order."""


def outputs_of(
    file: Run,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    batch_size: int | None,
) -> list[np.ndarray]:
    """Return the outputs of a file, run in batches of the size that it takes."""
    names = [argument.name for argument in arguments]
    size = batch_size or len(arrays[0])
    parts = [
        file(dict(zip(names, (_rows(a, start, size) for a in arrays), strict=True)))
        for start in range(0, len(arrays[0]), size)
    ]
    joined = (np.concatenate(outputs) for outputs in zip(*parts, strict=True))
    return [output[: len(arrays[0])] for output in joined]


def _rows(array: np.ndarray, start: int, size: int) -> np.ndarray:
    """Return `size` rows, the last one again where there are fewer."""
    return array[np.minimum(np.arange(start, start + size), len(array) - 1)]


def in_codes(
    file: LiteRT, arguments: Sequence[Argument], arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the int8 codes of samples."""
    codes = []
    for argument, array in zip(arguments, arrays, strict=True):
        scale, zero = file.inputs[argument.name]["quantization"]
        steps = np.rint(array / np.float32(scale)) + zero
        codes.append(np.clip(steps, -128, 127).astype(np.int8))
    return codes


def in_steps(
    file: LiteRT, codes: Sequence[np.ndarray], floats: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return int8 outputs and floats, both in steps of the scale of each output."""
    steps, others = [], []
    for number, (output, exact) in enumerate(zip(codes, floats, strict=True)):
        scale, zero = file.outputs[f"output_{number}"]["quantization"]
        steps.append(output.astype(np.float32) - zero)
        others.append(np.rint(exact / np.float32(scale)))
    return steps, others


def difference(
    outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], least: float
) -> float:
    """Return the largest absolute difference as a share of the largest output.

    Each output is taken for itself, and the worst of them counts.

    Args:
        outputs: of the file.
        expected: those of the model, of the same shapes.
        least: what the difference is a share of where no output is as large.

    Raises:
        ModelError: if numbers or shapes do not agree; NaN agrees only with NaN.

    Example:
        >>> difference([np.array([1.0, 4.5])], [np.array([1.0, 4.0])], least=1.0)
        0.125
    """
    shapes = [[tuple(a.shape) for a in arrays] for arrays in (outputs, expected)]
    if shapes[0] != shapes[1]:
        raise ModelError(
            "The file does not give what its model gives. Expected: outputs of the "
            f"shapes {shapes[1]}. Received: {shapes[0]}."
        )
    pairs = zip(outputs, expected, strict=True)
    return max((_of_one(a, b, least) for a, b in pairs), default=0.0)


def _of_one(output: np.ndarray, expected: np.ndarray, least: float) -> float:
    output, expected = output.astype(np.float64), expected.astype(np.float64)
    equal = (output == expected) | (np.isnan(output) & np.isnan(expected))
    if equal.all():
        return 0.0
    gaps = np.abs(output - expected)[~equal]
    if not np.isfinite(gaps).all():
        return float("inf")
    finite = np.abs(expected[np.isfinite(expected)])
    return float(gaps.max() / max(finite.max(initial=0.0), least))
