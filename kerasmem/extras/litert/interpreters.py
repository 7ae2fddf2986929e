"""Runs exported files in LiteRT and onnxruntime.

Both packages are optional extras.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kerasmem.backends.converting import Argument
from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.litert.arguments import in_batches


class LiteRT:
    """Runs a LiteRT file with one signature.

    Args:
        content: Bytes of the file.
        threads: Number of threads. Defaults to 1.
        keeps_tensors: Whether `tensors` returns intermediate tensors. XNNPACK is not
            used then.

    Raises:
        ConfigError: If `ai-edge-litert` is not installed.
        ModelError: If the interpreter cannot load the file.
    """

    def __init__(
        self,
        content: bytes,
        threads: int = 1,
        *,
        keeps_tensors: bool = False,
    ) -> None:
        room = litert_module("interpreter")
        kernels = "BUILTIN_WITHOUT_DEFAULT_DELEGATES" if keeps_tensors else "AUTO"
        try:
            with warnings.catch_warnings():
                # LiteRT warns that `keeps_tensors` is only for debugging.
                warnings.simplefilter("ignore", UserWarning)
                self._interpreter = room.Interpreter(
                    model_content=content,
                    num_threads=threads,
                    experimental_preserve_all_tensors=keeps_tensors,
                    experimental_op_resolver_type=getattr(room.OpResolverType, kernels),
                )
            self._run = self._interpreter.get_signature_runner()
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"LiteRT cannot load the file: {_in_one_line(error)}"
            ) from error

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """LiteRT's details of each input by name."""
        return self._run.get_input_details()

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """LiteRT's details of each output by name."""
        return self._run.get_output_details()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and value of each float tensor of the last run."""
        numbers = {
            number
            for operation in self._interpreter._get_ops_details()
            for number in operation["outputs"]
        }
        numbers.update(each["index"] for each in self._interpreter.get_input_details())
        for detail in self._interpreter.get_tensor_details():
            if detail["index"] in numbers and detail["dtype"] == np.float32:
                yield detail["name"], self._interpreter.get_tensor(detail["index"])

    def value(self, number: int, graph: int = 0) -> np.ndarray:
        """Return a tensor of the last run by its number in a graph of the file."""
        return self._interpreter.get_tensor(int(number), graph)

    def encoded(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return samples with codes for quantized inputs."""
        details = self.inputs
        return {name: encoded(x, details[name]) for name, x in arrays.items()}

    def decoded(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return outputs as floats."""
        details = self.outputs
        return [decoded(y, details[f"output_{n}"]) for n, y in enumerate(outputs)]

    def __call__(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order."""
        try:
            outputs = self._run(**arrays)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"LiteRT cannot run the file: {_in_one_line(error)}"
            ) from error
        # `output_10` comes after `output_9`.
        return [outputs[name] for name in sorted(outputs, key=lambda n: (len(n), n))]


def constant_bytes(content: bytes) -> int:
    """Return the bytes of all constants of a LiteRT file: weights and shapes."""
    model = litert_module("schema_py_generated").ModelT.InitFromPackedBuf(content, 0)
    numbers = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    buffers = (model.buffers[number].data for number in numbers)
    return sum(len(data) for data in buffers if data is not None)


def litert_module(name: str) -> Any:
    """Import a module of `ai_edge_litert`."""
    return module_of_extra(
        f"ai_edge_litert.{name}",
        "LiteRT runs the file before it is written. Expected: the package "
        "ai-edge-litert is installed",
    )


def module_of_extra(name: str, reason: str) -> Any:
    """Import a module of a package of the extra `litert`.

    `reason` is the start of the error message.

    Raises:
        ConfigError: If the package is not installed.
    """
    package = name.partition(".")[0]
    # Imported by name, because type checkers cannot resolve a missing package.
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{reason} (pip install kerasmem[litert]). Received: no module {package!r}."
        )
    return importlib.import_module(name)


_PACKAGES = ("tf2onnx", "onnxruntime")


def check_onnx() -> None:
    """Raise `ConfigError` unless tf2onnx and onnxruntime are installed."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            "ONNX export needs tf2onnx, and onnxruntime to run the file. Expected: "
            "both are installed (pip install kerasmem[onnx]). Received: no module "
            f"{' or '.join(map(repr, missing))}."
        )


class Onnx:
    """Runs an ONNX file on the CPU.

    Raises:
        ConfigError: If `onnxruntime` is not installed.
        ModelError: If onnxruntime cannot load the file.
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
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ModelError(
                f"onnxruntime cannot load the file: {_in_one_line(error)}"
            ) from error

    def __call__(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Return the outputs in order."""
        names = [output.name for output in self._session.get_outputs()]
        # `output_10` comes after `output_9`.
        names.sort(key=lambda name: (len(name), name))
        return self.run(names, arrays)

    def run(
        self, names: Sequence[str], arrays: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return outputs by name."""
        try:
            return list(self._session.run(names, arrays))
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ModelError(
                f"onnxruntime cannot run the file: {_in_one_line(error)}"
            ) from error


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


Run = Callable[[dict[str, np.ndarray]], list[np.ndarray]]
"""Function from a dict of input arrays to the outputs in order."""


def outputs_of(
    file: Run,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    batch_size: int | None,
) -> list[np.ndarray]:
    """Return the outputs of a file. `batch_size=None` runs all samples at once."""
    names = [argument.name for argument in arguments]
    return in_batches(file, names, arrays, batch_size or len(arrays[0]))


def float_outputs(
    file: LiteRT,
    arguments: Sequence[Argument],
    arrays: Sequence[np.ndarray],
    batch_size: int | None,
) -> list[np.ndarray]:
    """Return float outputs of a file that may have quantized inputs and outputs."""
    names = [argument.name for argument in arguments]
    inputs = file.encoded(dict(zip(names, arrays, strict=True)))
    outputs = outputs_of(file, arguments, list(inputs.values()), batch_size)
    return file.decoded(outputs)


def encoded(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Quantize samples for an input with codes, or return them unchanged."""
    scale, zero = detail["quantization"]
    if not scale or array.dtype == detail["dtype"]:
        return array
    ends = np.iinfo(detail["dtype"])
    steps = np.rint(array / np.float32(scale)) + zero
    return np.clip(steps, ends.min, ends.max).astype(detail["dtype"])


def decoded(output: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Dequantize an output, or return it unchanged if float."""
    scale, zero = detail["quantization"]
    if not scale or np.issubdtype(output.dtype, np.floating):
        return output
    return (output.astype(np.float32) - zero) * np.float32(scale)
