"""Pruning on a schedule inside `fit`."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.graph.values import to_numpy
from tests.models import L, Subclassed

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :3] ** 2


def model(optimizer="sgd", **compile_arguments):
    made = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(20, activation="relu", kernel_constraint="non_neg"),
            L.Dense(3),
        ]
    )
    made.compile(optimizer, "mse", **compile_arguments)
    return made


def prune(*arguments, **keywords):
    """Return a choice of every kernel, also that of the output layer."""
    return km.Prune(*arguments, include="kernel", **keywords)


def shares(made):
    return [float((to_numpy(layer.kernel) == 0).mean()) for layer in made.layers]


class Look(keras.callbacks.Callback):
    """Notes the share of zeros that a checkpoint would have."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(min(shares(self.model)))


OPTIMIZERS = {
    "sgd": lambda: "sgd",
    "averaging": lambda: keras.optimizers.Adam(0.01, use_ema=True),
    "accumulating": lambda: keras.optimizers.Adam(
        0.01, global_clipnorm=1.0, gradient_accumulation_steps=2
    ),
    "loss_scaling": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.01, momentum=0.9)
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_sparsity_rises_to_its_end_and_nothing_is_left_behind(optimizer):
    made = model(optimizer())
    unpruned = model(optimizer())
    unpruned.optimizer.build(unpruned.trainable_variables)
    look = Look()
    pruning = km.callbacks.Pruning(prune(0.75))
    history = made.fit(
        X, Y, epochs=4, batch_size=16, verbose=0, callbacks=[pruning, look]
    ).history
    # Of 50 updates over 8 steps, the last before the end of epoch 1 is at 3/8.
    assert history["sparsity"] == pytest.approx([0.5534, 0.7479, 0.75, 0.75], abs=1e-4)
    for aimed, seen in zip(history["sparsity"], look.seen, strict=True):
        assert aimed - 0.02 <= seen <= aimed
    assert shares(made) == [0.75, 0.75]
    assert (to_numpy(made.layers[0].kernel) >= 0).all()
    constraints = [layer.kernel.constraint for layer in made.layers]
    assert isinstance(constraints[0], keras.constraints.NonNeg)
    assert constraints[1] is None
    assert len(made.optimizer.variables) == len(unpruned.optimizer.variables)


def test_jit_and_several_steps_at_once(backend):
    several = {} if backend == "torch" else {"steps_per_execution": 2}
    made = model(jit_compile=backend != "torch", **several)
    pruning = km.callbacks.Pruning(prune(0.6, end=0.8))
    made.fit(X, Y, epochs=3, batch_size=8, verbose=0, callbacks=[pruning])
    assert shares(made) == [0.6, 0.6]


def test_a_checkpoint_written_meanwhile_is_sparse_and_plain(tmp_path):
    made = model("adam")
    path = tmp_path / "{epoch}.keras"
    made.fit(
        X,
        Y,
        epochs=2,
        verbose=0,
        callbacks=[
            keras.callbacks.ModelCheckpoint(path),
            km.callbacks.Pruning(prune(0.75, end=0.0)),
        ],
    )
    first = keras.models.load_model(tmp_path / "1.keras")
    assert min(shares(first)) == 0.75
    assert int(first.optimizer.iterations) == 2


def test_after_an_exception_the_next_fit_trains_every_weight_again():
    made = model()

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    pruning = km.callbacks.Pruning(prune(0.75, end=0.0))
    with pytest.raises(KeyboardInterrupt):
        made.fit(X, Y, epochs=2, verbose=0, callbacks=[pruning, Stop()])
    assert shares(made)[1] == 0.75
    made.fit(X, Y, epochs=1, verbose=0)
    assert shares(made)[1] < 0.5
    assert made.layers[1].kernel.constraint is None


def test_two_prunings_leave_nothing_behind_either():
    made, unpruned = model("adam"), model("adam")
    unpruned.optimizer.build(unpruned.trainable_variables)
    own = [variable.constraint for variable in made.trainable_variables]
    prunings = [km.callbacks.Pruning(prune(share)) for share in (0.3, 0.5)]
    made.fit(X, Y, epochs=2, verbose=0, callbacks=prunings)
    assert shares(made)[1] == 0.5  # in the other, non_neg makes zeros of its own
    assert [variable.constraint for variable in made.trainable_variables] == own
    assert len(made.optimizer.variables) == len(unpruned.optimizer.variables)


def test_listed_last_pruning_has_the_last_word_on_weights_that_are_restored():
    made = model()
    # The first epoch, in which nothing is pruned, is the best: mode="max" of the loss.
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=9, restore_best_weights=True
    )
    pruning = km.callbacks.Pruning(prune(0.5, begin=0.5, end=0.5))
    made.fit(X, Y, epochs=4, verbose=0, callbacks=[stop, pruning])
    assert stop.best_epoch == 0
    assert shares(made)[1] == np.mean(stop.best_weights[2] == 0) + 0.5 == 0.5
    kept = to_numpy(made.layers[1].kernel)
    np.testing.assert_array_equal(kept[kept != 0], stop.best_weights[2][kept != 0])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_length_is_pruned_at_the_ends_of_epochs():
    made = model()
    batches = ((X[i : i + 16], Y[i : i + 16]) for i in range(0, 64, 16))
    pruning = km.callbacks.Pruning(prune(0.5))
    history = made.fit(batches, verbose=0, shuffle=False, callbacks=[pruning]).history
    assert history["sparsity"] == [0.5]
    assert min(shares(made)) == 0.5


def test_a_training_that_ends_too_early_is_said():
    made = model()
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(made, "stop_training", True)
    )
    pruning = km.callbacks.Pruning(prune(0.75, begin=0.5, end=0.9))
    with pytest.warns(KerasMemWarning, match="sparsity is 0.000 instead of 0.750"):
        made.fit(X, Y, epochs=4, verbose=0, callbacks=[pruning, stop])
    assert shares(made)[1] == 0


def test_a_model_without_weights_is_an_error():
    pruning = km.callbacks.Pruning(prune(0.5))
    pruning.set_model(Subclassed())
    with pytest.raises(ModelError, match="no weights to prune yet"):
        pruning.on_train_begin()


def test_pruning_takes_a_prune():
    with pytest.raises(ConfigError, match=r"must be a Prune, .* Received: prune=0.5"):
        km.callbacks.Pruning(0.5)
