"""The analytic estimate against peaks measured on a GPU.

    python tests/benchmarks/bench_estimate.py PATH_TO/peaks.jsonl PATH_TO/cases.py

Nothing of the models is run; no GPU is needed.

What TensorFlow's allocator wastes is also fitted anew without each model and tried on
it. So is the width of the interval: as many times as wide as it has to be for nine of
ten cases of all other models (split-conformal).
"""

import argparse
import importlib.util
import json
import math
import statistics
import time
from collections import defaultdict
from itertools import chain
from pathlib import Path

import keras

import kerasmem as km
from kerasmem.memory.estimate.analytic import _WIDTH
from kerasmem.memory.estimate.analytic.framework import _WHOLE_CHUNKS
from kerasmem.units import MIB

WASTES = [n / 100 for n in range(21)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peaks", type=Path)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--method", default="analytic")
    options = parser.parse_args()
    cases = load(options.cases)
    rows = [json.loads(line) for line in options.peaks.read_text().splitlines()]
    groups = defaultdict(list)
    models = {}
    for row in rows:
        key = row["model"], row["dtype"]
        if key not in models:
            models[key] = build(cases, *key)
        case = compare(models[key], row, options.method)
        groups[case["group"]].append(case)
        print(line(case))
    for group, found in groups.items():
        print(summary(group, found))
        if len({case["model"] for case in found}) > 1:
            print(summary(f"{group}, each model left out", left_out(found)))
    print("the interval, each model left out:", held([*chain(*groups.values())]))


def load(path):
    spec = importlib.util.spec_from_file_location("cases", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(cases, name, dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return cases.build(name)[0]
    finally:
        keras.config.set_dtype_policy(before)


def compare(model, row, method):
    options = {
        "backend": row["backend"],
        "jit_compile": row["jit"],
        "optimizer": row["opt"],
        "method": method,
    }
    start = time.perf_counter()
    estimate = km.estimate_memory(model, row["batch"], **options)
    seconds = time.perf_counter() - start
    predict = km.estimate_memory(model, row["batch"], **options, training=False)
    peak, low, high = estimate.peak_bytes, estimate.low_bytes, estimate.high_bytes
    if row["backend"] == "jax":
        # Its allocator cannot reset the peak: the measured one is the process's.
        peak = max(peak, estimate.first_step_bytes or 0)
        high = max(high, estimate.first_step_high_bytes or 0)
    true = row["steady"]["peak"]
    # It was measured after training, with what that leaves behind.
    left = estimate.by_category().get("optimizer_state", 0)
    if row["backend"] == "torch":
        left += row["weight_bytes"] + estimate.by_category()["workspace"] // 2
    return {
        "group": f"{row['backend']}{' jit' if estimate.jit_compile else ''}",
        "backend": row["backend"],
        "model": row["model"],
        "name": f"{row['model']} {row['batch']} {row['dtype']} {row['opt']}",
        "estimate": peak,
        "known": known_bytes(estimate),
        "low": low,
        "high": high,
        "true": true,
        "error": peak / true - 1,
        "inside": low <= true <= high,
        "first": (estimate.first_step_bytes or 0) / row["first"]["peak"] - 1,
        "first inside": (estimate.first_step_low_bytes or 0)
        <= row["first"]["peak"]
        <= (estimate.first_step_high_bytes or 0),
        "predict": (predict.peak_bytes + left) / row["predict"]["peak"] - 1,
        "predict inside": predict.low_bytes
        <= row["predict"]["peak"] - left
        <= predict.high_bytes,
        "seconds": seconds,
    }


def known_bytes(estimate):
    sizes = estimate.by_category()
    return sizes["parameter"] + sizes.get("optimizer_state", 0)


def left_out(found):
    """Return the cases, each with a waste fitted on all other models."""
    again = []
    for name in {case["model"] for case in found}:
        others = [case for case in found if case["model"] != name]
        waste = min(WASTES, key=lambda waste: median_error(others, waste))
        own = [case for case in found if case["model"] == name]
        again += [with_waste(case, waste) for case in own]
    return again


def held(cases):
    """Return how often intervals hold whose width other models tell, and the widths."""
    inside, widths = [], {}
    for backend in {case["backend"] for case in cases}:
        found = [case for case in cases if case["backend"] == backend]
        widths[backend] = round(width_of(found) * _WIDTH[backend], 3)
        for case in found:
            others = [other for other in found if other["model"] != case["model"]]
            inside.append(needed_width(case) <= width_of(others))
    share = f"{sum(inside)} of {len(inside)} ({sum(inside) / len(inside):.0%})"
    return f"{share}; width of all: {widths}"


def median_error(found, waste):
    return statistics.median(abs(with_waste(case, waste)["error"]) for case in found)


def with_waste(case, waste):
    """Return the case with another share that the allocator wastes."""
    if case["group"] != "tensorflow":
        return case
    more = (case["estimate"] - case["known"]) * ((1 + waste) / (1 + _WHOLE_CHUNKS) - 1)
    moved = {key: case[key] + more for key in ("estimate", "low", "high")}
    return case | moved | {"error": moved["estimate"] / case["true"] - 1}


def width_of(found):
    """Return how many times as wide the intervals have to be, for one more case."""
    widths = sorted(map(needed_width, found))
    return widths[min(len(widths), math.ceil(0.9 * (len(widths) + 1))) - 1]


def needed_width(case):
    peak, true = case["estimate"], case["true"]
    end = case["low"] if true < peak else case["high"]
    return (true - peak) / (end - peak)


def line(case):
    return (
        f"{case['group']:15} {case['name']:36} {case['estimate'] / MIB:8.0f} of "
        f"{case['true'] / MIB:8.0f} MiB {case['error']:+7.1%} "
        f"{'in ' if case['inside'] else 'OUT'}  first step {case['first']:+7.1%} "
        f"{'in ' if case['first inside'] else 'OUT'} "
        f"predict {case['predict']:+7.1%} "
        f"{'in ' if case['predict inside'] else 'OUT'} {case['seconds']:.2f} s"
    )


def summary(group, found):
    errors = sorted(abs(case["error"]) for case in found)
    nine_of_ten = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    inside = sum(case["inside"] for case in found)
    return (
        f"{group}: {len(found)} cases, median {statistics.median(errors):.1%}, nine of "
        f"ten within {nine_of_ten:.1%}, largest {errors[-1]:.1%}; the interval holds "
        f"the truth in {inside} of {len(found)}"
    )


if __name__ == "__main__":
    main()
