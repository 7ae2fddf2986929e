"""Registers serializable classes with Keras and optional features with the core."""

from kerasmem import layers, optimizers, optional
from kerasmem.compression.factorize import inside
from kerasmem.compression.quantize import layer
from kerasmem.compression.quantize.aware import quantizers
from kerasmem.extras.legacy import static_layers
from kerasmem.files import load, skeleton

__all__ = [
    "inside",
    "layer",
    "layers",
    "load",
    "optimizers",
    "quantizers",
    "skeleton",
    "static_layers",
]

optional.register(
    {
        "Adam8bit": "kerasmem.extras.optimizers:Adam8bit",
        "comparison_plot": "kerasmem.report.plots:comparison_plot",
        "estimate_plot": "kerasmem.report.plots:estimate_plot",
        "estimate_by_plan": "kerasmem.extras.plans:estimate",
        "export": "kerasmem.extras.litert:export",
        "load_legacy": "kerasmem.extras.legacy.read:load_legacy",
        "model_card": "kerasmem.extras.language.model_card:model_card",
        "save_preset": "kerasmem.compression.presets:save_preset",
        "scope": "kerasmem.extras.growth:scope",
    }
)
