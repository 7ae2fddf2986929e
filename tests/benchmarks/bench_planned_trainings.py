"""Plans of a tiny Gemma as people train one now, for a card that is not here.

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_planned_trainings [CASE...]

Prints the peak of each in MiB, in brackets without what the allocator gives beyond what
it is asked for, the same by the fast method, and processor seconds. Needs
kerasmem[plans].
"""

import os
import resource
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

import keras
import keras_hub

import kerasmem as km
from kerasmem.units import MIB

BATCH = 8
SHAPES = {"token_ids": (64,), "padding_mask": (64,)}


def gemma(layers=2):
    keras.utils.set_random_seed(1)
    backbone = keras_hub.models.GemmaBackbone(
        vocabulary_size=2000,
        hidden_dim=128,
        intermediate_dim=512,
        num_query_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_layers=layers,
    )
    return keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)


def compiled(model, optimizer="adam"):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=[], weighted_metrics=[])
    return model


def with_lora(model, optimizer="adam"):
    model.backbone.enable_lora(8)
    return compiled(model, optimizer)


def in_codes(scheme):
    model = km.compress(gemma(), km.Quantize(scheme), verbose=0).model
    return with_lora(model, km.optimizers.Adam8bit())


def frozen():
    model = gemma()
    for layer in model.backbone.layers[:-2]:
        layer.trainable = False
    return compiled(model)


def rematerialized(make=compiled):
    return compiled(
        km.rematerialize(make(gemma(4)), batch_size=BATCH, input_shape=SHAPES)
    )


def chunked():
    backbone = gemma().backbone
    head = km.layers.ChunkedVocabulary(backbone.token_embedding)
    model = keras.Model(backbone.input, head(backbone.output))
    model.compile("adam", km.layers.ChunkedCrossentropy())
    return model


CASES = {
    "whole": lambda: compiled(gemma()),
    "LoRA": lambda: with_lora(gemma()),
    "QLoRA int8": lambda: in_codes("int8"),
    "QLoRA int4": lambda: in_codes("int4"),
    "frozen": frozen,
    "four blocks": lambda: compiled(gemma(4)),
    "four blocks, rematerialized": rematerialized,
    "four blocks, rematerialized, LoRA": lambda: rematerialized(with_lora),
    "four blocks, 8-bit activations": lambda: km.compress_activations(
        compiled(gemma(4))
    ),
    "chunked head": chunked,
    "accumulation": lambda: compiled(
        gemma(), keras.optimizers.Adam(gradient_accumulation_steps=4)
    ),
    "EMA": lambda: compiled(gemma(), keras.optimizers.Adam(use_ema=True)),
    "predict": lambda: compiled(gemma()),
    "generate": lambda: compiled(gemma()),
}


def main(names):
    for name in names or CASES:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        model = CASES[name]()
        options = {
            "jit_compile": True,
            "device": "h200",
            "input_shape": SHAPES,
            "training": name != "predict",
            "generate": 64 if name == "generate" else None,
        }
        fast = km.estimate_memory(model, BATCH, method="analytic", **options)
        found = km.estimate_memory(model, BATCH, method="plan", **options)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = sum(after[:2]) - sum(before[:2])
        asked, fast_asked = (
            x.peak_bytes - x.by_category().get("rounding", 0) for x in (found, fast)
        )
        print(
            f"{name}: {found.peak_bytes / MIB:.1f} ({asked / MIB:.1f}), fast method "
            f"{fast.peak_bytes / MIB:.1f} ({fast_asked / MIB:.1f}, "
            f"{fast_asked / asked - 1:+.0%}), {seconds:.0f} s, "
            f"largest process {after.ru_maxrss / 1024:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # nothing comes from an earlier run
        main(sys.argv[1:])
