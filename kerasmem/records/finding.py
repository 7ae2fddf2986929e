"""What a monitor noticed, in words."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kerasmem.errors import InputError
from kerasmem.records.plain import read_json, record_from

SEVERITIES = ("error", "warning", "note")
"""The gravest first: what was trained is lost, is in danger, or is worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One thing worth a person's attention, told once.

    Args:
        kind: what it is, such as `"leak"` or `"vanishing gradient"`.
        text: one or two sentences with names and figures.
        epoch: index of the epoch after which it was noticed, from 0.
        layer: path of the layer it is about, None if it is about none or several.
        monitor: class name of the callback that noticed it.
        severity: one of `SEVERITIES`.
        layers: paths of all layers it is about, in the order of the model.
    """

    kind: str
    text: str
    epoch: int
    layer: str | None
    monitor: str
    severity: str = "warning"
    layers: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the finding as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Finding":
        """Return the finding that `to_json` made `line` of.

        Raises:
            InputError: if it is none, or its severity none of `SEVERITIES`.
        """
        found = record_from(cls, read_json(line))
        if found.severity not in SEVERITIES:
            raise InputError(
                f"A severity is one of {', '.join(SEVERITIES)}. Received: "
                f"severity={found.severity[:50]!r}."
            )
        return found


def gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings by severity; those of one severity keep their order."""
    return tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity)))
