"""kerasmem measures and reduces the memory of Keras 3 models.

`import kerasmem` imports Keras and registers the layers of kerasmem for
`keras.models.load_model`. Other modules are imported on first use. The command
`kerasmem` starts without Keras, so that `--help` is fast and TensorFlow's startup
messages do not appear.
"""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kerasmem.public import *  # noqa: F403


def _is_command() -> bool:
    # `python -m other kerasmem` is not the command.
    words = f"{' '.join(sys.orig_argv)} "
    as_module = sys.argv[0] == "-m" and " -m kerasmem " in words
    return as_module or Path(sys.argv[0]).stem == "kerasmem"


def _public() -> dict[str, tuple[str, str]]:
    source = pkgutil.get_data("kerasmem", "public.py") or b""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_PUBLIC = dict(sorted(_public().items()))
__all__ = list(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Imports and returns a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kerasmem' has no attribute {name!r}")
    home, own = _PUBLIC[name]
    if home == __name__:
        return importlib.import_module(f"{home}.{own}")
    globals()[name] = value = getattr(importlib.import_module(home), own)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


if not _is_command():
    importlib.import_module("kerasmem.registered")
