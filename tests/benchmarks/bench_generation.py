"""Generation by models of KerasHub: the analytic method against plans, no card here.

    python -m tests.benchmarks.bench_generation [CASE...] [--backend jax tensorflow]

Prints whole peaks of an H100 in MB without what the allocator gives beyond what it is
asked for. Needs kerasmem[plans].
"""

import argparse
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import keras_hub

import kerasmem as km
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.estimate.generation import cache_of

M = keras_hub.models


def gemma(layers, heads, kv_heads, vocabulary=1000):
    backbone = M.GemmaBackbone(
        vocabulary_size=vocabulary,
        num_layers=layers,
        num_query_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        hidden_dim=128,
        intermediate_dim=256,
    )
    return M.GemmaCausalLM(backbone, preprocessor=None)


def llama(layers, heads, kv_heads, dtype=None):
    backbone = M.LlamaBackbone(
        vocabulary_size=1000,
        num_layers=layers,
        num_query_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_dim=64 * heads,
        intermediate_dim=1024,
        dtype=dtype,
    )
    return M.LlamaCausalLM(backbone, preprocessor=None)


def gpt2():
    backbone = M.GPT2Backbone(
        vocabulary_size=1000,
        num_layers=12,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=1024,
        max_sequence_length=512,
        dropout=0.0,
    )
    return M.GPT2CausalLM(backbone, preprocessor=None)


CASES = {
    "gemma": (lambda: gemma(12, 8, 8), 16, 128),
    "llama": (lambda: llama(12, 8, 8), 16, 128),
    "llama in 16 bits": (lambda: llama(12, 8, 8, "bfloat16"), 16, 128),
    "gpt2": (gpt2, 16, 128),
    "gemma, shared keys": (lambda: gemma(3, 4, 1), 8, 512),
    "gemma, many words": (lambda: gemma(2, 2, 2, 60_000), 64, 32),
    "llama, shared keys": (lambda: llama(6, 16, 4), 32, 512),
    "llama, shared keys, in 16 bits": (lambda: llama(6, 16, 4, "bfloat16"), 32, 512),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--backend", nargs="*", default=["jax"])
    options = parser.parse_args()
    for name in options.cases:
        make, batch_size, length = CASES[name]
        model = make()
        request = checked_request(model, batch_size, generate=length)
        cache = cache_of(request).nbytes
        for backend in options.backend:
            plan, fast = (
                km.estimate_memory(
                    model,
                    batch_size,
                    generate=length,
                    method=method,
                    device="h100",
                    jit_compile=True,
                    backend=backend,
                )
                for method in ("plan", "analytic")
            )
            plan, fast = (
                x.peak_bytes - x.by_category().get("rounding", 0) for x in (plan, fast)
            )
            print(
                f"{name}, {backend}: cache {cache / 1e6:.0f}, plan {plan / 1e6:.0f}, "
                f"analytic {fast / 1e6:.0f} ({fast / plan - 1:+.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
