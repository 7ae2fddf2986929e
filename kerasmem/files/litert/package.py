"""The package of LiteRT's interpreter, which is an extra."""

import importlib
import importlib.util
from typing import Any

from kerasmem.errors import ConfigError


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
