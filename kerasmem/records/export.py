"""What an exported file is, and how far it is from its model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ExportReport:
    """One exported file, run back and compared with the model it was made of.

    Args:
        path: the file, LiteRT's or ONNX's by its ending.
        scheme: `"float"`, or `"int8-dynamic"`: int8 weights, activations that are
            rounded as they come; `"int8-static"`: int8 codes from end to end.
        file_bytes: size of the file.
        samples: number of samples that both were run on.
        difference: largest absolute difference of an output, as a share of the
            largest output (of 1.0 at least, for `"float"`).
        tolerance: the largest difference that was allowed.
    """

    path: str
    scheme: str
    file_bytes: int
    samples: int
    difference: float
    tolerance: float
