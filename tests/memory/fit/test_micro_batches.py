"""One update from several parts of a batch is the update of the whole batch."""

from operator import imul

import keras
import numpy as np
import pytest
from keras import layers

from kerasmem import backends
from kerasmem.errors import KerasMemWarning, ModelError
from kerasmem.graph.values import to_numpy
from kerasmem.memory.fit import fit, training

SAMPLES, BATCH = 96, 32
PARTS = (1, 2, 4, 7)
# XLA takes longer than all the rest, and JAX has nothing else: it is for a few here.
PLAIN = {"jit_compile": False} if keras.backend.backend() == "tensorflow" else {}


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(SAMPLES, 6)).astype("float32")
    return {"x": x, "y": np.stack([x.sum(1), x[:, 0] ** 2, x[:, 1]], 1)}


def tokens(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, 9, size=(SAMPLES, 5))
    x[np.arange(5) >= rng.integers(1, 6, SAMPLES)[:, None]] = 0
    return {"x": x, "y": rng.normal(size=(SAMPLES, 5, 2)).astype("float32")}


def weighted(arguments, seed=1):
    rng = np.random.default_rng(seed)
    return arguments | {"sample_weight": rng.uniform(0.1, 3, SAMPLES).astype("float32")}


def compiled(model, **options):
    usual = {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]}
    model.compile(**(usual | PLAIN | options))
    return model


def dense(**options):
    keras.utils.set_random_seed(3)
    return compiled(
        keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(16, activation="tanh", kernel_regularizer="l2"),
                layers.Dense(3),
            ]
        ),
        **options,
    )


def masked(**options):
    # SGD: on TensorFlow Keras's Adam squares what each token adds to a row of the
    # embedding on its own; summed up over parts, it is squared as on JAX and torch.
    options = {"optimizer": keras.optimizers.SGD(0.1), "metrics": None} | options
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            layers.Embedding(9, 4, mask_zero=True),
            layers.Dense(6, activation="tanh"),
            layers.Dense(2),
        ]
    )
    return compiled(model, **options)


def several(**options):
    """Two outputs, of which one is masked."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,), dtype="int32")
    embedded = layers.Embedding(9, 4, mask_zero=True)(inputs)
    tagged = layers.Dense(2, name="tags")(layers.Dense(6, "tanh")(embedded))
    pooled = layers.GlobalAveragePooling1D()(embedded)
    whole = layers.Dense(1, name="whole")(pooled)
    options = {
        "optimizer": keras.optimizers.SGD(0.1),
        "loss": {"tags": "mse", "whole": "mae"},
        "loss_weights": {"tags": 1.0, "whole": 0.3},
        "metrics": None,
    } | options
    return compiled(keras.Model(inputs, {"tags": tagged, "whole": whole}), **options)


def two_targets():
    arguments = tokens()
    y = arguments["y"]
    return arguments | {"y": {"tags": y, "whole": y[:, 0, :1]}}


def weights(model):
    return [np.array(keras.ops.convert_to_numpy(v)) for v in model.variables]


def in_parts(patch, parts):
    """Have every batch go in so many parts."""
    patch.setattr(training, "micro_batches", lambda *_, **__: parts)
    return {"memory_limit": "1TiB"}


@pytest.fixture
def compare(monkeypatch):
    """Trains once as Keras does and once in parts; compares weights and History."""

    def compare(make, arguments, *numbers_of_parts):
        arguments = {"batch_size": BATCH, "epochs": 4} | arguments
        expected = make()
        wanted = expected.fit(**arguments, shuffle=False, verbose=0).history
        for parts in numbers_of_parts:
            compare_in_parts(make(), arguments, parts, expected, wanted)

    def compare_in_parts(found, arguments, parts, expected, wanted):
        # A single part goes without the sums of gradients; two at least have them.
        limit = in_parts(monkeypatch, parts)
        with (
            pytest.warns(match=f"in {parts} micro-batches") if parts > 1 else nothing()
        ):
            history = fit(found, **arguments, **limit, shuffle=False, verbose=0).history
        for ours, theirs in zip(weights(found), weights(expected), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert history.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-6)
        steps = [
            int(keras.ops.convert_to_numpy(model.optimizer.iterations))
            for model in (found, expected)
        ]
        assert steps[0] == steps[1]
        own = [v.path for v in found.optimizer.variables]
        assert len(own) == len(expected.optimizer.variables)
        assert not any("kerasmem" in path for path in own)

    return compare


class nothing:  # noqa: N801 - reads as a word
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_the_weights_are_those_of_whole_batches(compare):
    compare(dense, data(), *PARTS)


def test_a_ragged_last_batch_and_sample_weights_count_as_in_fit(compare):
    few = {name: array[:75] for name, array in weighted(data()).items()}
    compare(lambda: dense(weighted_metrics=["mae"]), few, 4)


def test_class_weights_count_as_in_fit(compare):
    arguments = data()
    arguments["y"] = (np.arange(SAMPLES) % 3).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compare(
        lambda: dense(loss=loss, metrics=["accuracy"]),
        arguments | {"class_weight": {0: 1.0, 1: 5.0, 2: 0.2}},
        4,
    )


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_with_sample_weight"])
def test_every_reduction_of_the_loss_counts_as_in_fit(compare, reduction):
    def make():
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        return dense(loss=loss, optimizer=keras.optimizers.SGD(0.01), metrics=None)

    compare(make, weighted(data()), 4)


def test_a_mask_counts_as_in_fit(compare):
    compare(masked, tokens(), 4)


def test_a_mask_and_sample_weights_count_as_in_fit(compare):
    arguments = weighted(tokens())
    weights_of_tokens = arguments["sample_weight"][:, None] * np.ones((1, 5), "float32")
    arguments["sample_weight"] = weights_of_tokens
    compare(lambda: masked(jit_compile="auto"), arguments, 7)


def test_a_mask_of_one_output_of_two_counts_as_in_fit(compare):
    compare(several, two_targets(), 4)


def test_labels_that_a_loss_ignores_count_as_in_fit(compare):
    def make():
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=0
        )
        return dense(loss=loss, metrics=None)

    labels = np.random.default_rng(5).integers(0, 3, SAMPLES).astype("int32")
    compare(make, data() | {"y": labels}, 4)


def decaying():
    return keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)


@pytest.mark.parametrize(
    ("rate", "options"),
    [
        (decaying, {"global_clipnorm": 0.1, "weight_decay": 0.1}),
        (
            lambda: 0.01,
            {
                "clipvalue": 0.01,
                "use_ema": True,
                "ema_overwrite_frequency": 2,
                "gradient_accumulation_steps": 2,
            },
        ),
    ],
    ids=["a schedule, a norm and a decay", "a value, an average and accumulation"],
)
def test_what_the_optimizer_does_it_does_once_per_batch(compare, rate, options):
    def make():
        return dense(optimizer=keras.optimizers.Adam(rate(), **options))

    compare(make, data(), 4)


def test_loss_scaling_sees_the_gradient_of_the_whole_batch(compare):
    def make():
        inner = keras.optimizers.Adam(0.01)
        scaling = keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0)
        return dense(optimizer=scaling)

    compare(make, data(), 4)


def test_a_training_step_of_the_users_own_is_the_one_that_runs(compare):
    calls = []

    class Own(keras.Sequential):
        def train_step(self, *arguments):
            calls.append(len(arguments))
            return super().train_step(*arguments)

    def make():
        keras.utils.set_random_seed(3)
        return compiled(Own([keras.Input((6,)), layers.Dense(3)]))

    compare(make, data(), 4)
    assert calls


def test_a_subclassed_model_that_is_not_built_yet_trains_the_same(compare):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = layers.Dense(8, "tanh"), layers.Dense(3)

        def call(self, inputs):
            return self.head(self.hidden(inputs))

    def make():
        keras.utils.set_random_seed(3)
        return compiled(Own())

    compare(make, data(), 4)


@pytest.mark.one_backend  # JAX compiles above, and torch's compiler needs one of C++
def test_compiled_by_xla_the_weights_are_the_same(compare):
    compare(lambda: dense(jit_compile=True), data(), 7)


def test_run_eagerly_the_weights_are_the_same(compare):
    compare(lambda: dense(run_eagerly=True), data() | {"epochs": 1}, 4)


def test_several_steps_per_execution_are_as_many_updates(compare):
    if keras.backend.backend() == "torch":
        with pytest.raises(ValueError, match="steps_per_execution"):
            fit(dense(steps_per_execution=2), **data(), verbose=0)
        return
    compare(lambda: dense(steps_per_execution=2), data(), 4)


def test_a_training_step_that_updates_by_other_means_is_refused(monkeypatch):
    class Own(keras.Sequential):
        def train_step(self, *arguments):
            return self.test_step(*arguments)

    if keras.backend.backend() == "jax":

        def train_step(self, state, batch):
            trainable, others, optimizer, metrics = state
            logs, state = self.test_step((trainable, others, metrics), batch)
            return logs, (*state[:2], optimizer, state[2])

        Own.train_step = train_step
    model = compiled(Own([keras.Input((6,)), layers.Dense(3)]))
    with (
        pytest.warns(KerasMemWarning, match="in 2 micro-batches"),
        pytest.warns(KerasMemWarning, match="custom `train_step` cannot be checked"),
        pytest.raises(ModelError, match="one such update in `train_step`. Received: 0"),
    ):
        fit(model, **data(), verbose=0, **in_parts(monkeypatch, 2))


def test_weights_of_a_batch_in_parts_are_copies(monkeypatch):
    """So that a batch whose later part ran out of memory can be tried again."""
    weights = np.ones((8, 5), "float32")
    batch = [keras.ops.convert_to_tensor(x) for x in (tokens()["x"][:8], weights)]
    steps = backends.current().steps(masked(), "train")
    for _, _, part in steps.split((batch[0], batch[0], batch[1]), 2):
        imul(part, 2)  # as Keras does with a mask, in place on torch
    np.testing.assert_array_equal(to_numpy(batch[1]), weights)
