"""Columns of the matrix that tell of LoRA and of presets."""

import json
from pathlib import Path
from typing import Any

import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.graph.values import to_numpy
from tests.keras_hub.families import apart
from tests.masked import called

RANK, NONE = 2, "-"
_LOW_RANK = {"lora_kernel_a", "lora_kernel_b"}


def lora(s: Any) -> str | None:
    """On codes: only products of low rank and biases are trained; floats are alike."""
    backbone = getattr(s.model, "backbone", s.model)
    if not hasattr(backbone, "enable_lora"):
        return NONE
    model = km.compress(s.model, km.Quantize("int8")).model
    enable(getattr(model, "backbone", model))
    kept = [(v, to_numpy(v)) for v in model.non_trainable_weights]
    assert {v.name for v in model.trainable_weights} >= _LOW_RANK
    _train(model, s)
    for variable, value in kept:
        if "seed" not in variable.name:
            np.testing.assert_array_equal(to_numpy(variable), value)
    outputs = s.saved("lora", model)
    assert apart(outputs, s.plain) > 1e-4
    assert apart(s.saved("merged", km.dequantize(model)), outputs) < 1e-5
    return None


def enable(backbone: Any) -> None:
    """Give it LoRA; in all layers that take it, where KerasHub's names mean none."""
    backbone.enable_lora(RANK)
    if not any(v.name in _LOW_RANK for v in backbone.trainable_weights):
        layers = backbone._flatten_layers(include_self=False)
        names = {layer.name for layer in layers if hasattr(layer, "enable_lora")}
        backbone.enable_lora(RANK, target_layer_names=[*names])


def _train(model: Any, s: Any) -> None:
    """Move every product of low rank away from the zero where it begins."""
    model.compile("adam", "mse", metrics=[], weighted_metrics=[], run_eagerly=True)
    model.train_on_batch(s.x, s.y)
    moved = [v for v in model.trainable_weights if v.name == "lora_kernel_b"]
    assert moved
    assert all(np.abs(to_numpy(v)).max() > 0 for v in moved)


def preset(s: Any) -> str | None:
    """What `save_to_preset` wrote goes from file to file."""
    if not hasattr(s.model, "save_to_preset"):
        return NONE
    s.model.save_to_preset(str(s.folder / "floats"))
    result = km.compress(
        s.folder / "floats", km.Quantize("int8"), output=s.folder / "preset"
    )
    report = result.report
    assert report.after.file_bytes < report.before.file_bytes
    outputs = called(opened(s.folder / "preset"), s.x)
    assert apart(outputs, s.plain) < 0.03
    np.savez(s.folder / "preset.npz", *outputs)
    return None


def opened(path: Path, custom_objects: Any = None) -> Any:
    """Open a file, or a preset as KerasHub does where it can."""
    task = path / "task.json"
    if not task.exists():
        return km.load_model(path, custom_objects=custom_objects)
    name = json.loads(task.read_text())["class_name"]
    return getattr(keras_hub.models, name).from_preset(str(path))
