"""The plan for a limit, for a number of pieces, or for the layers that begin one."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kerasmem.errors import ConfigError
from kerasmem.memory.rematerialize.plan import Piece, Rematerialization
from kerasmem.memory.rematerialize.search import Pieces, even, plans, split
from kerasmem.memory.rematerialize.setting import Setting
from kerasmem.memory.rematerialize.simulate import Simulation, simulate
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class Chosen:
    """Ranges of calls to compute again, and the plan as told to the user."""

    pieces: Pieces
    plan: Rematerialization


def by_limit(setting: Setting, limit_bytes: int | None) -> Chosen:
    """Return the fastest plan that keeps a limit; without one, that of lowest peak.

    Raises:
        ConfigError: if no plan keeps the limit.
    """
    tried = {
        pieces: simulate(setting.step, pieces)
        for pieces in (*plans(setting.calls, setting.fixed), _rooted(setting))
    }
    lowest = min(tried, key=lambda p: (tried[p].peak_bytes, tried[p].extra_time))
    if limit_bytes is None:
        return _chosen(setting, lowest, tried[lowest])
    fitting = [p for p, found in tried.items() if found.peak_bytes <= limit_bytes]
    if not fitting:
        raise ConfigError(
            f"No plan keeps the limit at batch size {setting.batch_size}. Expected: "
            f"from {format_bytes(tried[lowest].peak_bytes)}, the lowest estimated peak "
            f"({format_bytes(tried[()].peak_bytes)} without a plan). Received: "
            f"memory_limit={format_bytes(limit_bytes)}. Next: pass a higher limit or "
            "a smaller batch_size."
        )
    best = min(fitting, key=lambda p: (tried[p].extra_time, tried[p].peak_bytes))
    return _chosen(setting, best, tried[best])


def by_segments(setting: Setting, segments: int | Sequence[str]) -> Chosen:
    """Return the plan with the pieces asked for.

    Raises:
        ConfigError: if the model cannot be cut like this.
    """
    if isinstance(segments, int):
        pieces = _by_number(setting, segments)
    else:
        pieces = _by_names(setting, segments)
    return _chosen(setting, pieces, simulate(setting.step, pieces))


def _rooted(setting: Setting) -> Pieces:
    count = round(len(setting.calls) ** 0.5)
    return even(setting.calls, setting.fixed, count) if count > 1 else ()


def _by_number(setting: Setting, segments: int) -> Pieces:
    most = len(setting.calls)
    if isinstance(segments, bool) or not 2 <= segments <= most:
        raise ConfigError(
            f"The model is cut into pieces of at least one of its {most} calls. "
            f"Expected: an int from 2 to {most}. Received: segments={segments!r}."
        )
    return even(setting.calls, setting.fixed, segments)


def _by_names(setting: Setting, segments: Sequence[str]) -> Pieces:
    names = list(setting.names)
    unknown = [name for name in segments if name not in names]
    if isinstance(segments, str) or unknown or not segments:
        raise ConfigError(
            f"A piece begins at a layer of {setting.part.name!r}. Expected: names "
            f"among {names}. Received: segments={segments!r}."
        )
    starts = sorted({names.index(name) for name in segments} | {0})
    return split(list(itertools.pairwise(starts)), setting.fixed)


def _chosen(setting: Setting, pieces: Pieces, found: Simulation) -> Chosen:
    plan = Rematerialization(
        pieces=tuple(_pieces(setting, pieces)),
        model_name=setting.part.name,
        batch_size=setting.batch_size,
        peak_bytes=found.peak_bytes,
        plain_peak_bytes=simulate(setting.step, ()).peak_bytes,
        extra_time=found.extra_time,
    )
    return Chosen(pieces, plan)


def _pieces(setting: Setting, pieces: Pieces) -> list[Piece]:
    """Return all pieces in order, those between the given ones too."""
    found: list[Piece] = []
    at = 0
    for start, end in (*pieces, (len(setting.calls),) * 2):
        if at < start:
            found.append(_piece(setting, at, start, recomputed=False))
        if start < end:
            found.append(_piece(setting, start, end, recomputed=True))
        at = end
    return found


def _piece(setting: Setting, start: int, end: int, *, recomputed: bool) -> Piece:
    calls = setting.calls[start:end]
    inside = sum(call.kept_bytes for call in calls)
    handed = sum(call.output_bytes for call in calls if call.last_use >= end)
    return Piece(
        layers=tuple(setting.names[start:end]),
        recomputed=recomputed,
        kept_bytes=handed if recomputed else inside,
        recomputed_bytes=inside if recomputed else 0,
    )
