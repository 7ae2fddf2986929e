"""PQuantML: pruning and fixed-point numbers in replacement layers."""

import keras
from pquant import add_compression_layers, pdp_config
from pquant.core.keras.train import PQuantCallback

from tests.benchmarks.peers.base import row_of
from tests.benchmarks.peers.networks import compiled, fit, trained_network

TOOL, PACKAGE = "PQuantML", "pquant-ml"


def pruned_int8(task, name, job):
    """PDP to 80 %, weights in 8 bits, activations in 8 bits of which 3 are whole."""
    config = pdp_config()
    config.pruning_parameters.sparsity = 0.8
    config.pruning_parameters.epsilon = 1.0  # all of it at once: there are few epochs
    config.quantization_parameters.default_data_integer_bits = 3.0
    config.quantization_parameters.default_data_fractional_bits = 5.0
    tuning = task.more_epochs // 2
    lengths = {"pretraining_epochs": 0, "fine_tuning_epochs": tuning}
    callback = PQuantCallback(
        config,
        epochs=task.more_epochs - tuning,
        log_ebops=False,
        log_keep_ratio=False,
        **lengths,
    )
    model = add_compression_layers(trained_network(task, name, keras), config)
    compiled(model, keras)
    fit(model, task.images()[0], callback.total_epochs, [callback])
    yield row_of(task, name, job, model, "8-bit values, stored as float32")


JOBS = {"prune 80 %, int8 weights": pruned_int8}
