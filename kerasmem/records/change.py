"""What a technique did to one weight."""

from dataclasses import dataclass

from kerasmem.records.plain import OrNaN


@dataclass(frozen=True)
class WeightChange:
    """One weight after one technique: changed, or left alone and why.

    Args:
        layer: name of the layer that owns the weight.
        weight: path of the weight within the model.
        technique: `"prune"`, `"quantize"`.
        changed: True if the technique changed this weight.
        detail: what was done, or why nothing was.
        before_bytes: bytes of the weight in RAM before.
        after_bytes: bytes of the weight in RAM after.
        sqnr_db: signal-to-quantization-noise ratio of the weight in dB; None if nothing
            was rounded, or nothing was lost.
        output_sqnr_db: the same of what the layer makes of samples; None without any.
    """

    layer: str
    weight: str
    technique: str
    changed: bool
    detail: str
    before_bytes: int
    after_bytes: int
    sqnr_db: OrNaN | None = None
    output_sqnr_db: OrNaN | None = None
