"""What became of a case."""

import re
import traceback
from dataclasses import asdict, dataclass
from typing import Any

FAILURES = (
    "exception",
    "wrong value",
    "crash",
    "hang",
    "executed",
    "touched",
    "too much memory",
)
"""What ends CI; every other outcome is allowed."""


@dataclass(frozen=True)
class Outcome:
    """One word, a reason, and what a person needs to see more.

    Args:
        word: `"ok"`, `"nothing to do"`, `"refused"`, `"unfit"` for no case at all, or
            one of `FAILURES`.
        reason: in one line.
        trace: the traceback, if any.
    """

    word: str
    reason: str = ""
    trace: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is a fault of kerasmem."""
        return self.word in FAILURES

    @property
    def kind(self) -> str:
        """The reason without what differs from case to case."""
        text = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", self.reason)
        text = re.sub(r"[-+]?\d[\d.,e+-]*", "N", text)
        return f"{self.word}: {text[:140]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def line_of(error: BaseException) -> str:
    """Return file and function of the innermost line of kerasmem in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/kerasmem/" in f.filename]
    frame = (own or list(frames))[-1]
    return f"{frame.filename.rpartition('/kerasmem/')[2]}:{frame.name}"


class WrongResultError(Exception):
    """A call of kerasmem returned a wrong result."""
