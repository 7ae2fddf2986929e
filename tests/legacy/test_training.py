"""What a model of Keras 2 was compiled with means the same in Keras 3."""

import keras
import numpy as np
import pytest

from kerasmem.errors import ModelFileError
from kerasmem.extras.legacy.layers import make_layer
from kerasmem.extras.legacy.read import compile_arguments
from kerasmem.graph.values import to_numpy

LOGITS = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], "float32")


def test_a_loss_that_is_an_object_has_its_settings():
    """`"auto"` is what every one of Keras 2 says of how it is summed up."""
    config = {"reduction": "auto", "name": "loss", "from_logits": True, "fn": "f"}
    loss = {"class_name": "SparseCategoricalCrossentropy", "config": config}
    found = compile_arguments({"optimizer": "adam", "loss": loss}, {})["loss"]
    shares = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    expected = -np.log(shares[[0, 1], [2, 1]]).mean()
    assert float(found(np.array([2, 1]), LOGITS)) == pytest.approx(expected, rel=1e-5)


def test_the_decay_of_an_old_optimizer_is_a_schedule():
    config = {"learning_rate": 0.1, "decay": 0.5, "momentum": 0.9, "nesterov": True}
    optimizer = {"class_name": "SGD", "config": config}
    found = compile_arguments({"optimizer_config": optimizer}, {})["optimizer"]
    assert (found.momentum, found.nesterov) == (0.9, True)
    found.build([keras.Variable(np.ones(1))])
    found.iterations.assign(4)
    assert float(to_numpy(found.learning_rate)) == pytest.approx(0.1 / (1 + 0.5 * 4))


def test_an_optimizer_that_scales_the_loss_has_the_one_within():
    inner = {"class_name": "Adam", "config": {"learning_rate": 0.25, "beta_1": 0.5}}
    outer = {"inner_optimizer": inner, "dynamic": True, "initial_scale": 4.0}
    optimizer = {"class_name": "LossScaleOptimizerV3", "config": outer}
    found = compile_arguments({"optimizer_config": optimizer}, {})["optimizer"]
    assert isinstance(found, keras.optimizers.LossScaleOptimizer)
    assert found.inner_optimizer.beta_1 == 0.5
    assert found.initial_scale == 4.0


def test_a_layer_of_preprocessing_is_what_it_was():
    config = {"name": "zoom", "height_factor": 0.1, "rng_type": "stateful"}
    assert make_layer({"class_name": "RandomZoom", "config": config}, {}).name == "zoom"
    config = {"name": "words", "vocabulary": [3, 5], "vocabulary_size": 3}
    lookup = make_layer({"class_name": "IntegerLookup", "config": config}, {})
    assert to_numpy(lookup(np.array([5, 7, 3]))).tolist() == [2, 0, 1]
    config["vocabulary"] = None
    with pytest.raises(
        ModelFileError, match="'words'.*adapted vocabulary is not in its"
    ):
        make_layer({"class_name": "IntegerLookup", "config": config}, {})
