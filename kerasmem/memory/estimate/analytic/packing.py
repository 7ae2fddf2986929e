"""What it takes to pack an activation into eight bits, and to unpack it again.

These are the operations of `compress_activations`, as a backend runs them one by one.
"""

import math
from dataclasses import dataclass

from kerasmem.memory.compress_activations.math import FEWEST, grouping, packed_bytes
from kerasmem.memory.program import Op, Tensor

_FLOAT = 4


@dataclass(frozen=True, eq=False)
class Stored:
    """An activation that does not wait as it is.

    Args:
        tensors: what waits.
        pack: the operations that make these.
        unpack: the operations that make the activation of them.
        restored: that activation.
    """

    tensors: tuple[Tensor, ...]
    pack: tuple[Op, ...]
    unpack: tuple[Op, ...]
    restored: Tensor


def zeros(x: Tensor) -> Stored:
    """Return how nothing waits: one number, and zeros where values are of no use."""
    number, late = Tensor((1,), x.width, x.layer), Tensor(x.shape, x.width, x.layer)
    return Stored(
        (number,), (_op("zero", (), number),), (_op("zeros", (number,), late),), late
    )


def packed(x: Tensor) -> Stored | None:
    """Return how eight bits an entry wait, None where that is not worth it."""
    if x.width > _FLOAT or grouping(x.shape).entries < FEWEST:
        return None
    codes = Tensor((packed_bytes(x.shape),), 1, x.layer)
    late = Tensor(x.shape, x.width, x.layer)
    return Stored((codes,), _pack(x, codes), _unpack(codes, late), late)


def _pack(x: Tensor, codes: Tensor) -> tuple[Op, ...]:
    finite, above, below = (_like(x, 1) for _ in range(3))
    known, first, special, exact, noise, whole = (_like(x) for _ in range(6))
    rounded, summed, coded = (_like(x) for _ in range(3))
    return (
        _op("finite", (x,), finite),
        _op("below", (x,), below),
        _op("above", (x,), above),
        _op("infinite", (below,), first),
        _op("special", (above, first), special, over=(first,)),
        _op("known", (finite, x), known),
        _op("exact", (known,), exact, over=(known,)),
        _op("noise", (known,), noise),
        _op("whole part", (noise,), whole),
        _op("fraction", (noise, whole), rounded, over=(noise, whole)),
        _op("rounded", (exact, rounded), summed, over=(exact, rounded)),
        _op("coded", (finite, summed, special), coded, over=(summed, special)),
        _op("codes", (coded,), codes),
    )


def _unpack(codes: Tensor, late: Tensor) -> tuple[Op, ...]:
    floats, values, first, special = (_like(late) for _ in range(4))
    is_special, is_infinite, is_nan = (_like(late, 1) for _ in range(3))
    return (
        _op("floats", (codes,), floats),
        _op("infinite", (floats,), is_infinite),
        _op("nan", (floats,), is_nan),
        _op("special", (floats,), is_special),
        _op("values", (floats,), values, over=(floats,)),
        _op("infinities", (is_infinite,), first),
        _op("specials", (is_nan, first), special, over=(first,)),
        _op("restored", (is_special, special, values), late, over=(special, values)),
    )


def _like(x: Tensor, width: int = _FLOAT) -> Tensor:
    return Tensor((math.prod(x.shape),), width, x.layer)


def _op(
    name: str, reads: tuple[Tensor, ...], y: Tensor, over: tuple[Tensor, ...] = ()
) -> Op:
    return Op(name, None, "forward", reads, (y,), over, fusible=True)
