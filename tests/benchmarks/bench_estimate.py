"""The analytic estimate against peaks measured on a GPU.

    python tests/benchmarks/bench_estimate.py PATH_TO/peaks.jsonl PATH_TO/cases.py

Nothing of the models is run; no GPU is needed.
"""

import argparse
import importlib.util
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import keras

import kerasmem as km
from kerasmem.units import MIB


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
        "model": row["model"],
        "name": f"{row['model']} {row['batch']} {row['dtype']} {row['opt']}",
        "estimate": peak,
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
