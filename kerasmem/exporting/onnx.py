"""An ONNX file, run by onnxruntime; the packages that make and run it are an extra."""

import importlib
import importlib.util
from typing import Any

import numpy as np

from kerasmem.errors import ConfigError, ModelError

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
        threads: number of threads.

    Raises:
        ConfigError: if `onnxruntime` is not installed.
        ModelError: if onnxruntime refuses the file.
    """

    def __init__(self, content: bytes, threads: int = 1) -> None:
        check_onnx()
        room = importlib.import_module("onnxruntime")
        options = room.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session: Any = room.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # a class for every cause, no common one
            raise ModelError(f"onnxruntime refuses the file: {_line(error)}") from error

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
            raise ModelError(f"onnxruntime cannot run it: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
