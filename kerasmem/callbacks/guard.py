"""A monitor never breaks the training that it watches."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from kerasmem.errors import KerasMemWarning


def tell(text: str) -> None:
    """Warn with `text`; where warnings are errors, log it and go on."""
    try:
        warnings.warn(text, KerasMemWarning, stacklevel=3)
    except KerasMemWarning:
        logging.getLogger("kerasmem").warning(text)


class Guard:
    """Turns the first failure of a monitor into one warning, later ones into nothing.

    Args:
        who: name of the monitor, for the text of the warning.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._has_warned = False

    @contextmanager
    def __call__(self, doing: str) -> Iterator[None]:
        """Return a scope that swallows any exception.

        Args:
            doing: what the scope does, for the text of the warning, such as
                `"read the memory"`.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            reason = f"{type(error).__name__}: {error}"
            self.warn(f"{self._who} could not {doing}: {reason}. Training goes on.")

    def warn(self, text: str) -> None:
        """Warn with `text`, unless this guard has warned before."""
        if not self._has_warned:
            self._has_warned = True
            tell(text)
