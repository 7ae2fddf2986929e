"""The names and keywords that users rely on."""

import inspect

import pytest

import kerasmem as km

pytestmark = pytest.mark.one_backend


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_public_names_are_these_and_all_of_them_are_there():
    assert (
        sorted(km.__all__)
        == km.__all__
        == [
            "Budget",
            "Calibration",
            "Cluster",
            "CompressionResult",
            "Distill",
            "Distiller",
            "Equalize",
            "Factorize",
            "FoldBatchNorm",
            "Prune",
            "PruneChannels",
            "Quantize",
            "ReestimateBatchNorm",
            "callbacks",
            "compare_runtimes",
            "compress",
            "compress_activations",
            "dequantize",
            "distill",
            "distillation",
            "errors",
            "estimate_memory",
            "export",
            "find_batch_size",
            "fit",
            "load_model",
            "make_student",
            "memory",
            "optimizers",
            "predict",
            "quantization_aware",
            "rematerialize",
            "save_model",
        ]
    )
    assert all(hasattr(km, name) for name in km.__all__)
    assert km.callbacks.__all__ == [
        "ChannelSparsity",
        "FreezeBatchNorm",
        "GradientMonitor",
        "MemoryMonitor",
        "MemoryTimeline",
        "Pruning",
    ]
    assert km.memory.__all__ == [
        "allocator",
        "configure",
        "find_wide_types",
        "inspect_data",
        "isolated",
        "measure_step",
        "narrow_weights",
        "scope",
        "status",
        "stream",
        "watch_growth",
    ]
    assert all(hasattr(km.memory, name) for name in km.memory.__all__)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (km.callbacks.MemoryMonitor, ["every", "host", "log_dir"]),
        (km.callbacks.GradientMonitor, ["every", "per_variable", "log_dir"]),
        (
            km.compress,
            [
                *["model_or_path", "steps", "data", "validation_data"],
                *["fine_tune_epochs", "target", "max_drop", "loss", "metrics"],
                *["custom_objects", "seed"],
            ],
        ),
        (
            km.memory.configure,
            ["limit", "growth", "devices", "preallocate", "allocator"],
        ),
        (km.memory.status, []),
        (km.find_batch_size, ["model", "memory_limit"]),
        (km.distill, ["teacher", "student", "data", "epochs"]),
        (
            km.quantization_aware,
            [
                *["model", "quantize", "activations", "decay", "learned_scales"],
                "ranges",
            ],
        ),
        (
            km.estimate_memory,
            [
                *["model", "batch_size", "optimizer", "dtype_policy", "jit_compile"],
                *["backend", "training", "device", "method"],
            ],
        ),
    ],
)
def test_the_keywords_of_the_contract_come_first_and_in_order(function, names):
    assert parameters(function)[: len(names)] == names
