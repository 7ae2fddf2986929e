"""A LiteRT file, run by LiteRT's own interpreter."""

from typing import Any

import numpy as np

from kerasmem.errors import ModelError
from kerasmem.files.litert.package import litert_module

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


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
