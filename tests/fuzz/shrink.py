"""The smallest case that still fails: fewer steps, plainer choices."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

SKIP = "skip"  # as in graphs/program.py, which imports Keras
_MOST_TRIALS = 60
_PLAINER = {
    ("program", "policy"): "float32",
    ("program", "compiled"): None,
    ("program", "masks"): False,
    ("program", "form"): "functional",
    ("variant",): "fresh",
}


def shrunk(case: dict[str, Any], fails: Callable[[dict[str, Any]], bool]) -> Any:
    """Return the smallest case that was found to fail.

    Args:
        case: one that fails: `mutations`, or a `program` with `steps` and `outputs`.
        fails: tries another one.
    """
    if "seed" in case:
        return case
    left, going = _MOST_TRIALS, True
    while going and left > 0:
        going = False
        for smaller in _smaller(case):
            left -= 1
            if fails(smaller):
                case, going = smaller, True
                break
            if left <= 0:
                break
    return case


def _smaller(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _without(case, ("program", "outputs"), least=1)
    yield from _skipping(case)
    yield from _without(case, ("mutations",), least=0)
    for place, plain in _PLAINER.items():
        if _at(case, place) not in (None, plain):
            yield _with(case, place, plain)


def _without(
    case: dict[str, Any], place: tuple[str, ...], least: int
) -> Iterator[dict[str, Any]]:
    items = _at(case, place) or []
    for number in range(len(items)):
        if len(items) > least:
            yield _with(case, place, items[:number] + items[number + 1 :])


def _skipping(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield cases in which half of the steps, or one more, are skipped."""
    place = ("program", "steps")
    steps = _at(case, place) or []
    left = [number for number, step in enumerate(steps) if step[1] != SKIP]
    for size in sorted({max(len(left) // 2, 1), 1}, reverse=True):
        for start in range(0, len(left), size):
            skipped = left[start : start + size]
            yield _with(
                case,
                place,
                [
                    [step[0], SKIP, *step[2:]] if number in skipped else step
                    for number, step in enumerate(steps)
                ],
            )


def _at(case: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        case = case.get(name) if case else None
    return case


def _with(case: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    made = deepcopy(case)
    inner = made
    for name in place[:-1]:
        inner = inner[name]
    if place[-1] == "outputs":
        # A head belongs to its output.
        heads = dict(zip(inner["outputs"], inner["heads"], strict=True))
        inner["heads"] = [heads[name] for name in value]
    inner[place[-1]] = value
    return made
