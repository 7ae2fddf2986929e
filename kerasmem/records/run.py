"""What was run: the head of a run's report."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RunInfo:
    """What a monitor knows of the run that it watches.

    Args:
        model: name of the model.
        parameters: number of its weights' entries, 0 if it was not built yet.
        weight_bytes: bytes of its weights in RAM, 0 if it was not built yet.
        backend: name of the Keras backend.
        versions: versions by package name: keras, the backend, kerasmem.
        started: when the fit began, ISO 8601 with time zone.
        processes: number of processes that train together.
    """

    model: str
    parameters: int
    weight_bytes: int
    backend: str
    versions: dict[str, str]
    started: str
    processes: int

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RunInfo":
        """Return the record that `to_json` made `text` of."""
        return cls(**json.loads(text))
