"""kerasmem: where the memory of a Keras 3 model goes, and how to make it smaller.

`import kerasmem` imports Keras, so that `keras.models.load_model` knows the layers of
kerasmem from then on; what the public names need comes when the first of them is used.
The command `kerasmem` starts without Keras: help appears at once, and what TensorFlow
writes while it starts stays off the terminal.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kerasmem.public import *  # noqa: F403


def _is_command() -> bool:
    as_module = sys.argv[0] == "-m" and "kerasmem" in sys.orig_argv
    return as_module or Path(sys.argv[0]).stem == "kerasmem"


def __getattr__(name: str) -> Any:
    """Return a public name, or `__all__`; all of them are imported with the first."""
    if importlib.util.find_spec(f"{__name__}.{name}"):  # `from kerasmem import errors`
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module("kerasmem.public"), name)


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), "__version__"])


if not _is_command():
    importlib.import_module("kerasmem.registered")
