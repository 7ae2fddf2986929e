"""What the data of a run keeps in the memory of the host."""

import json
from dataclasses import asdict, dataclass

from kerasmem.records.plain import read_json, record_from
from kerasmem.units import format_bytes


@dataclass(frozen=True)
class PipelineStage:
    """One part of an input pipeline.

    Args:
        name: what it is, such as `"shuffle buffer"`.
        nbytes: most bytes that it holds, estimated; None if unknown or unbounded.
        advice: what to bound and how; None if there is nothing to gain.
    """

    name: str
    nbytes: int | None
    advice: str | None = None


@dataclass(frozen=True)
class DataMemory:
    """What `inspect_data` found out.

    Args:
        stages: the parts of the pipeline, from the source on.
        batch_size: samples per batch.
        batch_bytes: bytes of the first batch; None if the data can be read only once.
        measured_bytes: most resident bytes that came on top while the first batches
            were read; None if none were.
        measured_batches: number of batches that were read for it.
    """

    stages: tuple[PipelineStage, ...]
    batch_size: int
    batch_bytes: int | None
    measured_bytes: int | None
    measured_batches: int

    @property
    def estimated_bytes(self) -> int:
        """Sum over the stages whose bytes are known."""
        return sum(stage.nbytes or 0 for stage in self.stages)

    def table(self) -> str:
        """Return the figures as text, with what to bound and how."""
        rows = [(stage.name, stage.nbytes) for stage in self.stages]
        rows.append(("all of these, where known", self.estimated_bytes))
        if self.batch_bytes is not None:
            rows.append(("one batch", self.batch_bytes))
        width = max(len(name) for name, _ in rows)
        lines = ["host memory of the data, estimated:"]
        lines += [f"  {name:<{width}}  {_told(size):>10}" for name, size in rows]
        if self.measured_bytes is not None:
            came = format_bytes(self.measured_bytes)
            lines.append(
                f"measured over {self.measured_batches} batches, on top of what was "
                f"there: {came}"
            )
        advice = [f"  {s.name}: {s.advice}" for s in self.stages if s.advice]
        return "\n".join([*lines, "what to bound:", *advice] if advice else lines)

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataMemory":
        """Return the record that `to_json` made `text` of."""
        return record_from(cls, read_json(text))


def _told(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)
