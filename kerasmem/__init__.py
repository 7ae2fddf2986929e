"""kerasmem: where the memory of a Keras 3 model goes, and how to make it smaller.

`import kerasmem` imports Keras, so that `keras.models.load_model` knows the layers of
kerasmem from then on. In the command `kerasmem` the names come on demand instead: help
appears at once, and what TensorFlow writes while it starts stays off the terminal.
"""

import sys
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def _is_command() -> bool:
    as_module = sys.argv[0] == "-m" and "kerasmem" in sys.orig_argv
    return as_module or Path(sys.argv[0]).stem == "kerasmem"


if _is_command():

    def __getattr__(name: str) -> Any:
        """Return a public name; the module of `--import` may ask for one."""
        import importlib
        import importlib.util

        # A module, wanted by another one while the public names are still on the way.
        if importlib.util.find_spec(f"kerasmem.{name}") is not None:
            return importlib.import_module(f"kerasmem.{name}")
        return getattr(importlib.import_module("kerasmem.public"), name)

else:
    from kerasmem.public import *  # noqa: F403
    from kerasmem.public import __all__ as __all__
