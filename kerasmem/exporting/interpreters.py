"""The runtimes of exported files, LiteRT and ONNX: a file run and compared.

Their packages are extras.
"""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.errors import ConfigError, ModelError

KERNELS = {
    "xnnpack": "AUTO",
    "builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}
"""LiteRT's sets of kernels, by our names for them. They differ in the last digits."""


class LiteRT:
    """Runs a LiteRT file with one signature.

    Args:
        content: the bytes of the file.
        kernels: a key of `KERNELS`.
        threads: number of threads.

    Raises:
        ConfigError: if `ai-edge-litert` is not installed.
        ModelError: if the interpreter refuses the file.
    """

    def __init__(
        self, content: bytes, kernels: str = "xnnpack", threads: int = 1
    ) -> None:
        room = litert_module("interpreter")
        try:
            self._interpreter = room.Interpreter(
                model_content=content,
                num_threads=threads,
                experimental_op_resolver_type=getattr(
                    room.OpResolverType, KERNELS[kernels]
                ),
            )
            self._run = self._interpreter.get_signature_runner()
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"LiteRT refuses the file: {_in_one_line(error)}"
            ) from error

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """What LiteRT tells of each input, by its name."""
        return self._run.get_input_details()

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """What LiteRT tells of each output, by its name."""
        return self._run.get_output_details()

    def __call__(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order, for one array per input.

        Raises:
            ModelError: if the interpreter cannot run the file on them.
        """
        try:
            outputs = self._run(**arrays)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"LiteRT cannot run the file: {_in_one_line(error)}"
            ) from error
        # `output_10` comes after `output_9`.
        return [outputs[name] for name in sorted(outputs, key=lambda n: (len(n), n))]


def constant_bytes(content: bytes) -> int:
    """Return the bytes of the constants of a LiteRT file: weights and shapes.

    Args:
        content: the bytes of the file.

    Raises:
        ConfigError: if `ai-edge-litert` is not installed.
    """
    model = litert_module("schema_py_generated").ModelT.InitFromPackedBuf(content, 0)
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    buffers = (model.buffers[number].data for number in used)
    return sum(len(data) for data in buffers if data is not None)


def litert_module(name: str) -> Any:
    """Return a module of `ai_edge_litert`.

    Raises:
        ConfigError: if it is not installed.
    """
    # Typed as a whole only where it is installed.
    if importlib.util.find_spec("ai_edge_litert") is None:
        raise ConfigError(
            "A LiteRT file is run back before it is written. Expected: the package "
            "ai-edge-litert is installed (pip install kerasmem[litert]). Received: no "
            "module 'ai_edge_litert'."
        )
    return importlib.import_module(f"ai_edge_litert.{name}")


_PACKAGES = ("tf2onnx", "onnxruntime")


def check_onnx() -> None:
    """Raise unless the packages that make and run ONNX files are installed.

    Raises:
        ConfigError: if one is not.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "An ONNX file is made by tf2onnx and run back by onnxruntime. Expected: "
            "both are installed (pip install kerasmem[onnx]). Received: no module "
            f"{' or '.join(map(repr, missing))}."
        )


class Onnx:
    """Runs an ONNX file on the CPU.

    Args:
        content: the bytes of the file.

    Raises:
        ConfigError: if `onnxruntime` is not installed.
        ModelError: if onnxruntime refuses the file.
    """

    def __init__(self, content: bytes) -> None:
        check_onnx()
        room = importlib.import_module("onnxruntime")
        options = room.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self._session: Any = room.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # a class for every cause, no common one
            raise ModelError(
                f"onnxruntime refuses the file: {_in_one_line(error)}"
            ) from error

    def __call__(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order, for one array per input.

        Raises:
            ModelError: if onnxruntime cannot run the file on them.
        """
        names = [output.name for output in self._session.get_outputs()]
        # `output_10` comes after `output_9`.
        names.sort(key=lambda name: (len(name), name))
        try:
            return list(self._session.run(names, arrays))
        except Exception as error:  # see above
            raise ModelError(
                f"onnxruntime cannot run it: {_in_one_line(error)}"
            ) from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


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
