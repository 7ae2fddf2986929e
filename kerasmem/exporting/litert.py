"""A LiteRT file, run by LiteRT's own interpreter, whose package is an extra."""

import importlib
import importlib.util
from typing import Any

import numpy as np

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
            raise ModelError(f"LiteRT refuses the file: {_line(error)}") from error

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
            raise ModelError(f"LiteRT cannot run the file: {_line(error)}") from error
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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
