"""What `km.compress` returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.files.save import save_model
from kerasmem.records import CompressionReport, WeightChange


@dataclass(frozen=True)
class CompressionResult:
    """A compressed model, with the proof of what it costs and how well it does.

    Args:
        model: the compressed `keras.Model`, compiled as the original was.
        report: figures of the original and of the result.
        changes: every weight after every technique: changed, or left alone and why.
    """

    model: Any
    report: CompressionReport
    changes: tuple[WeightChange, ...]

    def save(self, path: str | Path) -> None:
        """Write the model as a deflated `.keras` file, whole or not at all.

        A pruned model opens in stock `keras.models.load_model`; one with int8 weights
        does after `import kerasmem`.

        Raises:
            ConfigError: if `path` does not end in `.keras`.
            OutputError: if the file cannot be written.
        """
        save_model(self.model, path)
