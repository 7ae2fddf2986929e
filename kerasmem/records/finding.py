"""What a monitor noticed, in words."""

import json
from dataclasses import asdict, dataclass

from kerasmem.records.plain import read_json, record_from


@dataclass(frozen=True)
class Finding:
    """One thing worth a person's attention, told once.

    Args:
        kind: what it is, such as `"leak"` or `"vanishing gradient"`.
        text: one or two sentences with names and figures.
        epoch: index of the epoch after which it was noticed, from 0.
        layer: path of the layer it is about, None if it is about none.
        monitor: class name of the callback that noticed it.
    """

    kind: str
    text: str
    epoch: int
    layer: str | None
    monitor: str

    def to_json(self) -> str:
        """Return the finding as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Finding":
        """Return the finding that `to_json` made `line` of."""
        return record_from(cls, read_json(line))
