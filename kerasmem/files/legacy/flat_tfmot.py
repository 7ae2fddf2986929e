"""Lists of weights without those that tfmot keeps beside them."""

from collections.abc import Sequence

import numpy as np

from kerasmem.files.legacy.tfmot import clustered, masked

Named = tuple[str, np.ndarray]

_CENTROIDS, _INDICES = "cluster_centroids_", "pulling_indices_"
_PRUNED = "prune_low_magnitude_"
_OF_PRUNING = ("mask", "threshold", "pruning_step")
_OF_QUANTIZING = ("optimizer_step",)
_RANGES = ("_min", "_max")


def stripped(entries: Sequence[Named]) -> list[Named]:
    """Return the weights of a layer, those of tfmot's own put into them or left out.

    Args:
        entries: `(name, array)` pairs, as tfmot lists them: a clustered weight stands
            just before its centroids, the indices behind all of them in that order.
    """
    entries = _with_masks(_with_centroids(entries))
    return [(name, array) for name, array in entries if not _is_of_tfmot(name)]


def _parts(name: str) -> tuple[str, str]:
    """Return the name of the layer, and the rest."""
    layer, _, rest = name.removesuffix(":0").partition("/")
    return layer, rest


def _is_of_tfmot(name: str) -> bool:
    layer, rest = _parts(name)
    return (
        rest.startswith((_CENTROIDS, _INDICES))
        or (layer.startswith(_PRUNED) and rest in _OF_PRUNING)
        or rest in _OF_QUANTIZING
        or (rest.endswith(_RANGES) and "/" not in rest)
    )


def _with_centroids(entries: Sequence[Named]) -> list[Named]:
    found = list(entries)
    indices = [a for name, a in entries if _parts(name)[1].startswith(_INDICES)]
    for i, (name, centroids) in enumerate(entries):
        if _parts(name)[1].startswith(_CENTROIDS):
            before, weight = entries[i - 1]
            found[i - 1] = (before, clustered(weight, centroids, indices.pop(0)))
    return found


def _with_masks(entries: Sequence[Named]) -> list[Named]:
    found = list(entries)
    for wrapper in dict.fromkeys(_parts(name)[0] for name, _ in entries):
        masks = [a for name, a in entries if _parts(name) == (wrapper, "mask")]
        own = (wrapper, wrapper.removeprefix(_PRUNED))
        places = [
            i
            for i, (name, _) in enumerate(entries)
            if _parts(name)[0] in own and not _is_of_tfmot(name)
        ]
        weights = masked([entries[i][1] for i in places], masks)
        for i, weight in zip(places, weights, strict=True):
            found[i] = (entries[i][0], weight)
    return found
