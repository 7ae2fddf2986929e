"""Into how many parts a batch goes, and when to try fewer again."""

_FIRST_PATIENCE = 2


class Plan:
    """The most samples that go through the model at a time.

    After a failure they become fewer. A failure may have had a cause that passes: so
    after some epochs twice as many are tried again, and if that fails too, after twice
    as many epochs, for on TensorFlow a failure takes ten seconds and more.

    Attributes:
        most: the most samples at a time; None for no limit.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        self._ceiling: int | None = None
        self._patience = _FIRST_PATIENCE
        self._waited = 0
        self._is_trying = False

    def foresee(self, most: int) -> None:
        """Let no more than `most` samples be tried, because more will not fit."""
        self._ceiling = most if self._ceiling is None else min(most, self._ceiling)
        self.most = self._ceiling if self.most is None else min(most, self.most)

    def fail(self, size: int, parts: int) -> None:
        """Note that memory ran out, and that a batch of `size` shall go in `parts`."""
        if self._is_trying:
            self._patience *= 2
        self._is_trying = False
        self._waited = 0
        self.most = -(-size // parts)

    def begin_epoch(self, largest: int) -> bool:
        """Return whether more samples at a time are tried from now on.

        Args:
            largest: samples in the largest batch so far.
        """
        if self.most is None or self.most == self._ceiling:
            return False
        self._waited += 1
        if self._waited <= self._patience:
            return False
        self._waited = 0
        self._is_trying = True
        more = 2 * self.most
        if self._ceiling is not None:
            self.most = min(more, self._ceiling)
        else:
            self.most = more if more < largest else None
        return True

    def parts(self, size: int) -> int:
        """Return into how many parts a batch of `size` samples goes."""
        return 1 if self.most is None else -(-size // self.most)
