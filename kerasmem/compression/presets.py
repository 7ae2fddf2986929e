"""Named recipes: what most people want, without choosing techniques."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.prune import Prune
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.recipe import as_steps
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError, did_you_mean
from kerasmem.files.save import Coding


@dataclass(frozen=True)
class Preset:
    """Steps, and how they are carried out unless the caller says otherwise.

    Args:
        steps: the techniques, in order.
        coding: of the file, as for `km.save_model`.
        epochs: of fine-tuning after each technique that allows it.
    """

    steps: tuple[Technique, ...]
    coding: Coding = "deflate"
    epochs: int = 0


def _fewer_multiplications(ratio: float) -> PruneChannels:
    return PruneChannels(ratio, of="multiplications", scope="global")


PRESETS = {
    "size": Preset((Prune(0.8, scope="global"), Quantize("int8")), "entropy", 3),
    "latency": Preset((_fewer_multiplications(0.5),), epochs=3),
    "balanced": Preset((_fewer_multiplications(0.3), Quantize("int8")), epochs=3),
    "lossless": Preset((), "entropy"),
}


def as_preset(steps: Any) -> Preset:
    """Return what `steps` means: the name of a preset, or what `as_steps` takes.

    Raises:
        ConfigError: if it is neither.

    Example:
        >>> as_preset("lossless").coding
        'entropy'
    """
    if isinstance(steps, str) and steps in PRESETS:
        return PRESETS[steps]
    if isinstance(steps, str) and not Path(steps).suffix:
        raise ConfigError(
            f"There is no preset {steps!r}.{did_you_mean(steps, PRESETS)} Presets are "
            f"{', '.join(PRESETS)}; a recipe is a file that ends in .json, .yaml or "
            ".yml."
        )
    return Preset(as_steps(steps))
