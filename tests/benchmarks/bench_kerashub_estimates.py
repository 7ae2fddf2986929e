"""Estimates of KerasHub models against TensorFlow's own peak of a second step.

python -m tests.benchmarks.bench_kerashub_estimates [--methods analytic traced measured]
    [--families gemma bert ...] [--jit] [--lora 8 [--scheme int4] [--lean]]
python -m tests.benchmarks.bench_kerashub_estimates --rematerialize
    [--families gemma bert vit] [--batch 64] [--layers 8] [--jit]
    peak and step time, plain and with activations computed again

Each family is made from its config, with 1 to 5 million random parameters, and trained
by Adam on 8 sequences of 64 tokens (or images of 65 patches), in a process of its own
with the allocator of a GPU on the CPU, which counts.
"""

import argparse
import gc
import os
import statistics
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.units import MIB
from tests.keras_hub.families import samples, shapes

M = keras_hub.models
BATCH = 8
LENGTH = 64
TURNS = 8
VOCABULARY = 2000

_TOKENS = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": 128,
    "intermediate_dim": 512,
}
_HEADS = {**_TOKENS, "num_heads": 4}
_ENCODER = {**_HEADS, "max_sequence_length": LENGTH}
_SHARED_HEADS = {**_TOKENS, "num_query_heads": 4, "num_key_value_heads": 2}
_IMAGES = {"image_shape": (64, 64, 3), "patch_size": 8, "num_heads": 4}


def gemma(**layers):
    backbone = M.GemmaBackbone(**_SHARED_HEADS, head_dim=32, **layers)
    return M.GemmaCausalLM(backbone, preprocessor=None)


def llama3(**layers):
    backbone = M.Llama3Backbone(**_SHARED_HEADS, **layers)
    return M.Llama3CausalLM(backbone, preprocessor=None)


def bert(**layers):
    return M.BertTextClassifier(M.BertBackbone(**_ENCODER, **layers), num_classes=3)


def gpt2(**layers):
    return M.GPT2CausalLM(M.GPT2Backbone(**_ENCODER, **layers), preprocessor=None)


def roberta(**layers):
    backbone = M.RobertaBackbone(**_ENCODER, **layers)
    return M.RobertaTextClassifier(backbone, num_classes=3)


def mixtral(**layers):
    backbone = M.MixtralBackbone(**_SHARED_HEADS, num_experts=4, top_k=2, **layers)
    return M.MixtralCausalLM(backbone, preprocessor=None)


def bart(**layers):
    return M.BartSeq2SeqLM(M.BartBackbone(**_ENCODER, **layers), preprocessor=None)


def vit(**layers):
    backbone = M.ViTBackbone(**_IMAGES, hidden_dim=128, mlp_dim=512, **layers)
    return M.ViTImageClassifier(backbone, num_classes=3)


def t5(**layers):
    return M.T5Backbone(**_HEADS, **layers)


def whisper(**layers):
    lengths = {
        "max_encoder_sequence_length": 2 * LENGTH,
        "max_decoder_sequence_length": LENGTH,
    }
    return M.WhisperBackbone(**_HEADS, num_mels=16, **lengths, **layers)


FAMILIES = {
    make.__name__: make
    for make in (gemma, llama3, bert, gpt2, roberta, mixtral, bart, vit, whisper, t5)
}


def compiled(name, *, jit=False, layers=4, lora=0, scheme=None):
    """Return a model of a family, compiled with Adam and a loss that fits it.

    With LoRA it is trained by Adam in eight bits; its weights are codes in a scheme.
    """
    keras.utils.set_random_seed(1)
    model = FAMILIES[name](num_layers=layers)
    loss = "mse"
    if not isinstance(model, keras_hub.models.Backbone):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if scheme:
        model = km.compress(model, km.Quantize(scheme), verbose=0).model
    if lora:
        model.backbone.enable_lora(lora)
    optimizer = km.optimizers.Adam8bit() if lora else "adam"
    model.compile(optimizer, loss, metrics=[], weighted_metrics=[], jit_compile=jit)
    return model


def batch_of(model, size=BATCH):
    """Return samples and their targets."""
    x = samples(model, size, LENGTH)
    answers = model.compute_output_spec(
        keras.tree.map_structure(lambda a: keras.KerasTensor(a.shape, a.dtype), x)
    )
    if model.loss == "mse":
        return x, keras.tree.map_structure(
            lambda y: np.zeros((size, *y.shape[1:]), "float32"), answers
        )
    length = answers.shape[1:-1]
    return x, np.zeros((size, *length), "int32")


def made(job):
    """Return the model of a job."""
    named = {key: job[key] for key in ("jit", "layers", "lora", "scheme")}
    return compiled(job["family"], **named)


def measure(job):
    """Return the peak of a second step by the allocator; runs in a child."""
    import tensorflow as tf

    model = made(job)
    x, y = batch_of(model, job["batch"])
    if job["lean"]:
        model = lean_of(model, x, jit=job["jit"])
    gc.collect()  # the model that was compressed or copied, too
    model.train_on_batch(x, y)
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.train_on_batch(x, y)
    return {"peak": tf.config.experimental.get_memory_info("CPU:0")["peak"]}


def lean_of(model, x, *, jit):
    """Return the model with activations computed again, compiled as it is."""
    size = len(keras.tree.flatten(x)[0])
    lean = km.rematerialize(model, batch_size=size, input_shape=shapes(model, x))
    settings = {"metrics": [], "weighted_metrics": [], "jit_compile": jit}
    lean.compile(type(model.optimizer)(), model.loss, **settings)
    return lean


def step_times(job):
    """Return how long later steps take, plain and lean in turns; runs in a child."""
    plain = made(job)
    x, y = batch_of(plain, job["batch"])
    models = [plain, lean_of(plain, x, jit=job["jit"])]
    seconds = [[], []]
    for turn in range(2 + TURNS):
        for model, found in list(zip(models, seconds, strict=True))[
            :: 1 - turn % 2 * 2
        ]:
            begin = time.perf_counter()
            model.train_on_batch(x, y)
            found.append(time.perf_counter() - begin)
    return {"seconds": [found[2:] for found in seconds]}


def in_child(task, **job):
    """Return what a task of this module answers, with the allocator that counts."""
    return run_in_child(
        f"tests.benchmarks.bench_kerashub_estimates:{task.__name__}",
        job,
        backend="tensorflow",
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
    )


_SETTINGS = ("jit", "batch", "layers", "lora", "scheme")


def _job(name, options):
    wanted = {key: getattr(options, key) for key in _SETTINGS}
    return {"family": name, **wanted}


def rematerialized(options):
    for name in options.families:
        job = _job(name, options)
        plain, lean = (
            in_child(measure, lean=lean, **job)["peak"] for lean in (False, True)
        )
        seconds = in_child(step_times, **job)["seconds"]
        ratios = [again / once for once, again in zip(*seconds, strict=True)]
        print(
            f"{name:8} {plain / MIB:7.1f} MiB -> {lean / MIB:7.1f} MiB "
            f"{lean / plain - 1:+6.1%}, step time {statistics.median(ratios):.2f}x "
            f"of {statistics.median(seconds[0]):.3f} s",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=["auto"])
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--rematerialize", action="store_true")
    parser.add_argument("--lora", type=int, default=0)
    parser.add_argument("--scheme")
    parser.add_argument("--lean", action="store_true")
    options = parser.parse_args()
    (rematerialized if options.rematerialize else estimated)(options)


def estimated(options):
    found = {method: [] for method in options.methods}
    for name in options.families:
        job = _job(name, options)
        true = in_child(measure, lean=options.lean, **job)["peak"]
        model = made(job)
        if options.lean:
            x, _ = batch_of(model, options.batch)
            model = lean_of(model, x, jit=options.jit)
        given = shapes(model, samples(model, 1, LENGTH))
        line = f"{name:8} {model.count_params() / 1e6:4.1f} M {true / MIB:7.1f} MiB"
        for method in options.methods:
            known = km.estimate_memory(
                model, options.batch, method=method, device="cpu", input_shape=given
            )
            error = known.peak_bytes / true - 1
            inside = known.low_bytes <= true <= known.high_bytes
            found[method].append((abs(error), inside))
            line += f"  {method} {known.peak_bytes / MIB:6.1f} {error:+6.1%}"
            line += f" {'in ' if inside else 'OUT'}"
        print(line, flush=True)
    for method, rows in found.items():
        errors = [error for error, _ in rows]
        print(
            f"{method}: median {statistics.median(errors):.1%}, largest "
            f"{max(errors):.1%}, inside the interval {sum(i for _, i in rows)} of "
            f"{len(rows)}"
        )


if __name__ == "__main__":
    main()
