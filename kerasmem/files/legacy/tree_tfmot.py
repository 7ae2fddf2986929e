"""Objects of a file without the wrappers that tfmot put around them.

The arrays of a wrapper have numbers only. First come the weights that it took out of
its layer or shares with it, then what it keeps beside them.
"""

from typing import Any

import numpy as np

from kerasmem.files.legacy.parts import Part
from kerasmem.files.legacy.tfmot import clustered, masked, wrapper_kind

Config = dict[str, Any]


def unwrapped(stored: Config, part: Part) -> Part:
    """Return what the file keeps of the layer in the wrappers, pruned by its masks."""
    while (kind := wrapper_kind(stored)) is not None:
        stored, inner = stored["config"]["layer"], part.parts.get("layer", Part())
        part = _pruned(inner, part) if kind == "prune" else inner
    return part


def taken_out(stored: Config, part: Part) -> list[np.ndarray]:
    """Return the weights that a wrapper took out of its layer, in the layer's order."""
    kind, own = wrapper_kind(stored), list(part.arrays.values())
    if kind == "cluster":
        # Weight and centroids in turn, then the indices of each.
        pairs, indices = own[: len(own) * 2 // 3], own[len(own) * 2 // 3 :]
        triples = zip(pairs[::2], pairs[1::2], indices, strict=True)
        return [clustered(*triple) for triple in triples]
    if kind == "quantize":
        return [array for array in own if array.ndim]
    if kind is None:
        return []
    return taken_out(stored["config"]["layer"], part.parts.get("layer", Part()))


def _pruned(part: Part, wrapper: Part) -> Part:
    """Return a layer's part with the masks of its wrapper applied, where it has any."""
    arrays = [array for array in wrapper.arrays.values() if array.ndim]
    masks = iter(arrays[len(arrays) // 2 :])
    waiting = list(masks)
    return _masked(part, waiting)


def _masked(part: Part, waiting: list[np.ndarray]) -> Part:
    before = list(part.arrays.values())
    found = masked(before, waiting)
    used = sum(a is not b for a, b in zip(before, found, strict=True))
    del waiting[:used]
    arrays = dict(zip(part.arrays, found, strict=True))
    return Part(arrays, {n: _masked(p, waiting) for n, p in part.parts.items()})
