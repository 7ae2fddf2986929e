"""Layers by name, those that follow each other as a range."""

from collections.abc import Collection, Iterable, Iterator, Sequence

_MOST_RANGES = 4


def layer_of(path: str) -> str:
    """Return the path of the layer that a variable belongs to.

    Example:
        >>> layer_of("block/dense/kernel")
        'block/dense'
    """
    return path.rpartition("/")[0] or path


def layers_of(paths: Iterable[str]) -> list[str]:
    """Return the layers that some variables belong to, each once, in their order."""
    return list(dict.fromkeys(map(layer_of, paths)))


def runs(layers: Collection[str], order: Sequence[str]) -> Iterator[list[str]]:
    """Yield the layers in parts that follow each other.

    Args:
        layers: some of the layers.
        order: all of them, in the order of the model.

    Example:
        >>> list(runs({"a", "b", "d"}, "abcde"))
        [['a', 'b'], ['d']]
    """
    run: list[str] = []
    for layer in order:
        if layer in layers:
            run.append(layer)
        elif run:
            yield run
            run = []
    if run:
        yield run


def layer_words(layers: Collection[str], order: Sequence[str]) -> str:
    """Return the layers in words, without the word for a single one.

    Example:
        >>> layer_words({"a"}, "abcdefg"), layer_words({"a", "c", "d", "e"}, "abcdefg")
        ('a', 'layers a, c to e')
    """
    parts = [
        part
        for run in runs(layers, order)
        for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)
    ]
    more = len(parts) - _MOST_RANGES
    shown = ", ".join(parts[:_MOST_RANGES]) + (f" and {more} more" if more > 0 else "")
    return shown if len(layers) == 1 else f"layers {shown}"
