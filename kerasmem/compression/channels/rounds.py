"""Channels that go in several rounds, with training in between.

Source: Molchanov, Tyree, Karras, Aila and Kautz, "Pruning Convolutional Neural Networks
for Resource Efficient Inference", 2017.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Round:
    """One of several rounds, each of which removes the same share of what is left.

    Args:
        number: which one it is, from 1.
        count: how many there are.
        sizes: how many channels each group had before the first round, by its key; the
            first one fills it in for the others.
    """

    number: int = 1
    count: int = 1
    sizes: dict[int, int] = field(default_factory=dict)

    def share(self, ratio: float) -> float:
        """Return the share of what is left that goes in this round.

        Example:
            >>> round(Round(2, 2).share(0.75), 3)
            0.5
        """
        return 1 - (1 - ratio) ** (1 / self.count) if self.count > 1 else ratio

    def so_far(self, ratio: float) -> float:
        """Return the share of what there was at first that is gone after this round.

        Example:
            >>> Round(1, 2).so_far(0.75), Round(2, 2).so_far(0.75)
            (0.5, 0.75)
        """
        if self.number == self.count:
            return ratio
        return 1 - (1 - ratio) ** (self.number / self.count)
