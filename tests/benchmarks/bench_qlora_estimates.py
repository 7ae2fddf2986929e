"""Estimates of LoRA and QLoRA by the analytic method, against XLA's plan for two cards.

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_qlora_estimates [CASE...]
        [--cards h100 a100] [--parts]

Language models from a config, rank 16, Adam in eight bits, rows of 512 tokens; QLoRA is
int4. Prints the weights in float, the plan's peak, the estimate with its interval and
the error. `--parts` prints bytes by category as well. Needs kerasmem[plans]; plans stay
in its cache.
"""

import argparse
import os
import statistics

os.environ["JAX_PLATFORMS"] = "cpu"

import keras
import keras_hub

import kerasmem as km
from kerasmem.units import MIB

LENGTH, RANK = 512, 16
SHAPES = {"token_ids": (LENGTH,), "padding_mask": (LENGTH,)}
M = keras_hub.models


def gemma():
    backbone = M.GemmaBackbone(
        vocabulary_size=32_000,
        num_layers=8,
        num_query_heads=8,
        num_key_value_heads=1,
        hidden_dim=512,
        intermediate_dim=4096,
        head_dim=64,
    )
    return M.GemmaCausalLM(backbone, preprocessor=None)


def llama():
    backbone = M.Llama3Backbone(  # the blocks of SmolLM2-135M
        vocabulary_size=49_152,
        num_layers=12,
        num_query_heads=9,
        num_key_value_heads=3,
        hidden_dim=576,
        intermediate_dim=1536,
        tie_word_embeddings=True,
    )
    return M.Llama3CausalLM(backbone, preprocessor=None)


def gpt():
    backbone = M.GPT2Backbone(  # the blocks of the smallest GPT-2
        vocabulary_size=50_257,
        num_layers=6,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
    )
    return M.GPT2CausalLM(backbone, preprocessor=None)


MODELS = {"gemma": (gemma, 8), "llama": (llama, 4), "gpt": (gpt, 4)}
CASES = [f"{name} {how}" for name in MODELS for how in ("lora", "qlora")]


def training(case):
    """Return the model of a case, compiled, its batch size and its weights."""
    name, how = case.split()
    make, batch = MODELS[name]
    keras.backend.clear_session()  # equal names, so that plans come from the cache
    keras.utils.set_random_seed(1)
    model = make()
    weights = model.count_params()
    if how == "qlora":
        model = km.compress(model, km.Quantize("int4"), verbose=0).model
    model.backbone.enable_lora(RANK)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(km.optimizers.Adam8bit(), loss, metrics=[], weighted_metrics=[])
    return model, batch, weights


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=CASES)
    parser.add_argument("--cards", nargs="*", default=["h100", "a100"])
    parser.add_argument("--parts", action="store_true")
    options = parser.parse_args()
    errors, inside, widths = [], 0, []
    for case in options.cases:
        model, batch, weights = training(case)
        for card in options.cards:
            asked = {"jit_compile": True, "device": card, "input_shape": SHAPES}
            plan, fast = (
                km.estimate_memory(model, batch, method=method, **asked)
                for method in ("plan", "analytic")
            )
            errors.append(fast.peak_bytes / plan.peak_bytes - 1)
            inside += fast.low_bytes <= plan.peak_bytes <= fast.high_bytes
            widths.append(fast.high_bytes / fast.low_bytes)
            low, peak, high = (
                x / MIB for x in (fast.low_bytes, fast.peak_bytes, fast.high_bytes)
            )
            print(
                f"{case:12} {weights / 1e6:4.0f} M {card:5} plan "
                f"{plan.peak_bytes / MIB:5.0f} MiB, estimate {peak:5.0f} ({low:.0f} to "
                f"{high:.0f}), {errors[-1]:+.1%}, high/low {widths[-1]:.2f}",
                flush=True,
            )
            if options.parts:
                for one in (plan, fast):
                    sizes = one.by_category().items()
                    print(*(f"{key} {size / MIB:.1f}" for key, size in sizes))
    print(
        f"median {statistics.median(map(abs, errors)):.1%}, largest "
        f"{max(map(abs, errors)):.1%}, inside {inside} of {len(errors)}, high/low at "
        f"most {max(widths):.2f}"
    )


if __name__ == "__main__":
    main()
