"""The variables, and other tensors, that lie in one allocator's memory."""

from collections import Counter
from collections.abc import Sequence

from kerasmem.backends.profile import Storage
from kerasmem.memory.timeline.watched import KnownVariable, Watched
from kerasmem.records import Block


class HeldVariables:
    """Says which block holds which variable.

    Args:
        model: the model.
        device: only variables on this device are looked at.
        opening: where variables lay when the window opened.
        closing: where they lay when it closed.
    """

    def __init__(
        self,
        model: Watched,
        device: str,
        opening: Sequence[Storage],
        closing: Sequence[Storage],
    ) -> None:
        self.variables = model.variables
        self._waiting = [place for place in opening if place.device == device]
        self.replicas = _most_copies(self._waiting)
        """Number of copies of a variable on this device."""
        self._closing = {
            place.address: place for place in closing if place.device == device
        }

    def taken_from_opening(self, address: int, nbytes: int) -> KnownVariable | None:
        """Return the variable that lay in a block of before the window, once."""
        fitting = [
            place
            for place in self._waiting
            if place.nbytes == nbytes and place.address in {address, None}
        ]
        if not fitting:
            return None
        self._waiting.remove(fitting[0])
        return self._at(fitting[0])

    def at_closing(self, address: int, nbytes: int) -> KnownVariable | None:
        """Return the variable that lies in a block after the window."""
        place = self._closing.get(address)
        if place is None or place.nbytes != nbytes:
            return None
        return self._at(place)

    def still_there(self, opening_bytes: int, rounding: int) -> list[Block]:
        """Return blocks for `opening_bytes` that stayed in use through the window.

        A variable counts with its bytes rounded up; what the allocator gave beyond
        that is in the last block, with all that is no variable.
        """
        blocks, rest = [], opening_bytes
        for place in sorted(self._waiting, key=lambda place: -place.nbytes):
            given = -(-place.nbytes // rounding) * rounding
            if given <= rest:
                rest -= given
                blocks.append(_block(self._at(place), place.address or 0, given))
        if rest > 0:
            blocks.append(Block(rest, rest, 0, None, None, "", None, *_UNKNOWN))
        return blocks

    def _at(self, place: Storage) -> KnownVariable:
        if place.variable is not None:
            return self.variables[place.variable]
        # What Python holds beside the variables is the data of `fit`.
        return KnownVariable(None, "", "input", "", "", place.nbytes)


def _most_copies(places: Sequence[Storage]) -> int:
    copies = Counter(place.variable for place in places if place.variable is not None)
    return max(copies.values(), default=1)


_UNKNOWN = ("unknown", "unknown")


def _block(variable: KnownVariable, address: int, given_bytes: int) -> Block:
    return Block(
        requested_bytes=variable.nbytes,
        given_bytes=given_bytes,
        address=address,
        allocated_at=None,
        freed_at=None,
        operation=variable.name,
        layer=variable.layer,
        phase="unknown",
        category=variable.category,
        shape=variable.shape,
        dtype=variable.dtype,
    )
