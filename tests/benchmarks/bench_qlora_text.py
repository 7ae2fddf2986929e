"""QLoRA of SmolLM2 on reviews, start to end, as docs/qlora.md does it.

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.bench_qlora_text GGUF REVIEWS
        [--steps 60] [--float | --scheme nf4]

int4 in groups of 64, LoRA of rank 8, a chunked head, Adam in eight bits, nothing kept
that can be made again; 2 rows of 128 tokens a step. Prints the perplexity on other
reviews before and after, the estimated and the seen peak of a step by TensorFlow's own
allocator, and seconds a step. `--float` trains LoRA on the float model in the same way,
not rematerialized; `--scheme nf4` takes other codes.
"""

import argparse
import gc
import os
import statistics
import time

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPU_ALLOCATOR_USE_BFC": "1"}
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import keras
import numpy as np
import tensorflow as tf

import kerasmem as km
from kerasmem.units import MIB
from tests.benchmarks import smollm2
from tests.benchmarks.bench_language import inputs, perplexity

LENGTH, BATCH, TEST = 128, 2, 5120


def learner_of(task, options):
    """Return what is trained: the backbone of a task, with a chunked head."""
    task.backbone.enable_lora(8)
    given = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("token_ids", "padding_mask")
    }
    head = km.layers.ChunkedVocabulary(task.backbone)
    learner = keras.Model(given, head(task.backbone(given)))
    if not options.float:
        shape = dict.fromkeys(given, (LENGTH,))
        learner = km.rematerialize(learner, batch_size=BATCH, input_shape=shape)
    learner.compile(
        km.optimizers.Adam8bit(5e-4),
        km.layers.ChunkedCrossentropy(),
        jit_compile=False,
    )
    return learner


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("reviews")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--float", action="store_true")
    parser.add_argument("--scheme", default="int4")
    options = parser.parse_args()
    file = smollm2.Gguf(options.gguf)
    task, made = smollm2.model(file), smollm2.tokenizer(file)
    count = options.steps * BATCH * (LENGTH + 1)
    ids = smollm2.tokens(made, options.reviews, TEST + count)
    new, known = inputs(ids[:TEST]), ids[TEST:].reshape(-1, BATCH, LENGTH + 1)
    if not options.float:
        codes = km.Quantize(options.scheme, granularity="group", group_size=64)
        task = km.compress(task, codes, verbose=0).model
        gc.collect()
    print(f"perplexity before {perplexity(task, new):.2f}", flush=True)
    learner = learner_of(task, options)
    del task  # the learner may be a copy
    gc.collect()
    shape = dict.fromkeys(("token_ids", "padding_mask"), (LENGTH,))
    estimate = km.estimate_memory(learner, BATCH, input_shape=shape, device="cpu")
    losses, seconds = [], []
    for number, rows in enumerate(known):
        x = {"token_ids": rows[:, :-1], "padding_mask": np.ones_like(rows[:, 1:])}
        if number == 2:
            rest = tf.config.experimental.get_memory_info("CPU:0")["current"]
            tf.config.experimental.reset_memory_stats("CPU:0")
        begin = time.perf_counter()
        learner.reset_metrics()
        loss, *_ = learner.train_on_batch(x, rows[:, 1:])
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
        if number == 2:
            peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
            print(
                f"rest {rest / MIB:.0f}, peak {peak / MIB:.0f} MiB, estimated "
                f"{estimate.peak_bytes / MIB:.0f}",
                flush=True,
            )
    tenth = max(1, len(losses) // 10)
    first, last = np.mean(losses[:tenth]), np.mean(losses[-tenth:])
    print(f"loss {first:.3f} to {last:.3f}, {statistics.median(seconds):.2f} s a step")
    print(f"perplexity after {perplexity(learner, new):.2f}", flush=True)


if __name__ == "__main__":
    main()
