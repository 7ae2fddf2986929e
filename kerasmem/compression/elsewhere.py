"""A model, weights and all, on its way to another process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from kerasmem.files.save import save_stored
from kerasmem.memory.child.parcel import modules_of, objects_in


def sent(model: Any, path: Path) -> dict[str, Any]:
    """Write `model` to `path`, and return what `received` opens it by there.

    Raises:
        ModelError: if a part of it is defined in the running script.
    """
    modules = modules_of(model)
    save_stored(model, path)
    return {"model": str(path), "modules": modules}


def received(parcel: Mapping[str, Any]) -> Any:
    """Return the model that `sent` wrote, not compiled."""
    objects = objects_in(parcel["modules"])
    # The file was made a moment ago, of a live model of the parent.
    return keras.models.load_model(
        parcel["model"], custom_objects=objects, compile=False, safe_mode=False
    )
