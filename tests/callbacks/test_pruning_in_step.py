"""Masks inside the compiled step: averages, dtypes, callbacks, resuming, kinds."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.prune import Constant, Polynomial, RigL, Splicing
from kerasmem.compression.prune.gradual import Gradual
from kerasmem.compression.prune.masks import Masks
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :3] ** 2
AT_ONCE = Constant()


def network(optimizer="adam", **compile_arguments):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(20, activation="relu"),
            L.Dense(24, activation="relu"),
            L.Dense(3, dtype="float32"),
        ]
    )
    model.compile(optimizer, "mse", **compile_arguments)
    return model


def fit(model, prune, *others, data=None, **arguments):
    pruning = km.callbacks.Pruning(prune, data=data)
    arguments = {"epochs": 2, "batch_size": 8, "verbose": 0, **arguments}
    history = model.fit(X, Y, callbacks=[pruning, *others], **arguments)
    return pruning, history.history


def zeros(variable):
    return float((to_numpy(variable) == 0).mean())


class EveryBatch(keras.callbacks.Callback):
    """Calls `look(model)` after every batch."""

    def __init__(self, look):
        super().__init__()
        self.look, self.seen = look, []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.look(self.model))


def averages(model):
    return model.optimizer._model_variables_moving_average


def test_moving_averages_are_as_sparse_as_the_weights_after_every_step():
    model = network(keras.optimizers.Adam(0.01, use_ema=True))
    looks = EveryBatch(
        lambda model: (zeros(model.layers[1].kernel), zeros(averages(model)[2]))
    )
    fit(model, km.Prune(0.75, schedule=AT_ONCE), looks)
    assert set(looks.seen) == {(0.75, 0.75)}
    # Without masks on it the average would have a part of each first step in it.
    assert (to_numpy(averages(model)[2]) == to_numpy(model.layers[1].kernel)).any()


def test_weights_overwritten_by_their_average_stay_sparse():
    optimizer = keras.optimizers.SGD(0.01, use_ema=True, ema_overwrite_frequency=3)
    model = network(optimizer)
    looks = EveryBatch(lambda model: zeros(model.layers[1].kernel))
    fit(model, km.Prune(0.75, schedule=AT_ONCE), looks)
    assert set(looks.seen) == {0.75}


def test_weights_are_sparse_after_every_batch_not_only_at_the_end_of_an_epoch():
    model = network()
    looks = EveryBatch(lambda model: zeros(model.layers[1].kernel))
    schedule = Polynomial(begin=2, end=10, every=1, unit="step")
    fit(model, km.Prune(0.75, schedule=schedule), looks)
    expected = [
        np.floor(480 * schedule.sparsity(step, 0.75)) / 480 if step >= 2 else 0
        for step in range(16)
    ]
    assert looks.seen == pytest.approx(expected)


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_weights_that_early_stopping_brings_back_are_pruned_in_any_order(first):
    model = network("sgd")
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=9, restore_best_weights=True
    )
    prune = km.Prune(0.5, begin=0.5, end=0.5)
    pruning = km.callbacks.Pruning(prune)
    callbacks = [pruning, stop] if first else [stop, pruning]
    model.fit(X, Y, epochs=4, verbose=0, callbacks=callbacks)
    assert stop.best_epoch == 0
    assert (stop.best_weights[2] != 0).all()
    assert zeros(model.layers[1].kernel) == 0.5
    assert "on_train_end" not in vars(model.history)


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_mixed_precision_with_a_float32_head(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    fit(model, km.Prune(0.75, include="kernel"))
    for layer in model.layers:
        assert zeros(keras.ops.cast(layer.kernel, "float32")) == 0.75


def test_at_rest_there_is_no_mask():
    model = network()
    model.optimizer.build(model.trainable_variables)
    gradual = Gradual(model, km.Prune(0.5))
    gradual.release()
    # It is read off the zeros.
    assert all(v.constraint is None for v in model.trainable_variables)


def test_a_mask_masks_what_the_array_does():
    size = 9
    model = keras.Sequential([keras.Input((size,)), L.Dense(1)])
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() != "torch")
    model.optimizer.build(model.trainable_variables)
    masks = Masks(model, [model.layers[0].kernel])
    kept = np.random.default_rng(size).random((size, 1)) > 0.5
    masks.write([kept])
    np.testing.assert_array_equal(masks.read()[0], kept)
    values = np.ones((size, 1), "float32")
    masked = to_numpy(model.layers[0].kernel.constraint(values))
    np.testing.assert_array_equal(masked, kept.astype("float32"))
    assert not np.signbit(masked).any()
    masks.release()


class StopAfter(keras.callbacks.Callback):
    """Ends a training early, as a machine that is taken away does."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == self.epoch


@pytest.mark.filterwarnings("ignore:Training ended before the pruning schedule")
@pytest.mark.parametrize(
    ("schedule", "arguments"),
    [
        (Polynomial(begin=0, end=28, every=1, unit="step"), {"epochs": 2}),
        (Polynomial(begin=0, end=0.9), {"epochs": 4, "initial_epoch": 2}),
        (
            Polynomial(begin=0, end=3.5, every=0.5, unit="epoch"),
            {"epochs": 4, "initial_epoch": 2},
        ),
    ],
    ids=["steps", "shares", "epochs"],
)
def test_a_training_that_is_taken_up_again_goes_on_where_it_was(
    tmp_path, schedule, arguments
):
    model, prune = network(), km.Prune(0.8, schedule=schedule)
    fit(model, prune, StopAfter(1), epochs=4)
    before = to_numpy(model.layers[1].kernel)
    model.save(tmp_path / "half.keras")
    again = keras.models.load_model(tmp_path / "half.keras")
    looks = EveryBatch(lambda model: to_numpy(model.layers[1].kernel))
    _, history = fit(again, prune, looks, **arguments)
    seen = looks.seen
    assert 0.3 < zeros(before) < 0.8
    for kernel in seen:
        assert (kernel[before == 0] == 0).all()
    assert zeros(seen[-1]) == pytest.approx(0.8, abs=1 / 480)
    assert history["sparsity"][-1] == pytest.approx(0.8)


def test_a_sparse_model_does_not_regrow_before_its_schedule_begins():
    model = network()
    fit(model, km.Prune(0.5, schedule=AT_ONCE), epochs=1)
    looks = EveryBatch(lambda model: zeros(model.layers[1].kernel))
    fit(model, km.Prune(0.7, begin=0.9, end=0.9), looks)
    assert min(looks.seen) == 0.5
    assert looks.seen[-1] == pytest.approx(0.7)


def test_a_kernel_of_zeros_at_the_start_is_not_taken_for_a_pruned_one():
    model = network()
    model.layers[2].kernel.assign(np.zeros((24, 3)))
    looks = EveryBatch(lambda model: zeros(model.layers[2].kernel))
    fit(model, km.Prune(0.5, begin=0.5, end=0.5, include="kernel"), looks)
    assert looks.seen[4] < 0.5
    assert looks.seen[-1] == 0.5


@pytest.mark.parametrize(
    ("prune", "text"),
    [
        (
            km.Prune(0.5, schedule=Constant(begin=100, every=100, unit="step")),
            "never prunes in this training, which ends at step 16.*begin=100",
        ),
        (
            km.Prune(0.5, schedule=Polynomial(begin=5, end=9, unit="epoch")),
            "which ends at epoch 2",
        ),
    ],
)
def test_a_schedule_that_can_never_fire_is_an_error(prune, text):
    with pytest.raises(ConfigError, match=text):
        fit(network(), prune)


def test_a_schedule_that_is_over_before_the_training_is_an_error():
    model = network()
    model.fit(X, Y, batch_size=8, verbose=0)
    prune = km.Prune(0.5, schedule=Polynomial(begin=0, end=6, unit="step"))
    with pytest.raises(ConfigError, match="add 8 to begin and end.*iterations=8"):
        fit(model, prune)
    fit(model, km.Prune(0.5, schedule=Polynomial(begin=8, end=20, unit="step")))
    assert zeros(model.layers[1].kernel) == 0.5


CRITERIA = {
    "taylor": {"criterion": "taylor"},
    "movement": {"criterion": "movement"},
    "wanda": {"criterion": "wanda"},
    "blocks": {"pattern": (2, 4)},
    "two_of_four": {"pattern": "2:4"},
    "together": {"scope": ["dense"]},
    "rigl": {"schedule": RigL(every=0.1)},
    "splicing": {"schedule": Splicing(every=0.1)},
}


@pytest.mark.parametrize("arguments", CRITERIA.values(), ids=CRITERIA.keys())
def test_every_way_of_choosing_reaches_its_sparsity_and_leaves_nothing(arguments):
    model, untouched = network(), network()
    untouched.optimizer.build(untouched.trainable_variables)
    data = X if arguments.get("criterion") == "wanda" else None
    pruning, history = fit(model, km.Prune(0.5, **arguments), data=data, epochs=3)
    assert history["sparsity"][-1] == pytest.approx(0.5)
    first, second, last = (zeros(layer.kernel) for layer in model.layers)
    assert last == 0
    pruned = (120 * first + 480 * second) / 600
    # 6 inputs are one group of four and half of another, 6x20 are 15 blocks.
    expected = {"two_of_four": 280 / 600, "blocks": 296 / 600}
    name = next(k for k, v in CRITERIA.items() if v is arguments)
    assert pruned == pytest.approx(expected.get(name, 0.5), abs=1 / 600)
    assert history["model_sparsity"][-1] == pytest.approx(600 * pruned / 719)
    assert len(model.optimizer.variables) == len(untouched.optimizer.variables)
    assert all(v.constraint is None for v in model.trainable_variables)
    reasons = [change.detail for change in pruning.changes if not change.changed]
    assert sorted(reasons) == [
        "is in the output layer",
        *["is not a kernel or embedding table"] * 3,
    ]


def sgd_kernels(schedule, steps):
    """Return a linear layer's kernel after every step of plain gradient descent."""
    model = keras.Sequential([keras.Input((4,)), L.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[0.1], [0.2], [3.0], [4.0]])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.tile(np.eye(4, dtype="float32"), (steps, 1))
    y = np.tile(np.array([[2.0], [0.2], [3.0], [0.0]], "float32"), (steps, 1))
    looks = EveryBatch(lambda model: to_numpy(model.layers[0].kernel).ravel())
    model.fit(
        x,
        y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        callbacks=[km.callbacks.Pruning(km.Prune(0.5, schedule=schedule)), looks],
    )
    return np.array(looks.seen)


def test_rigl_brings_back_where_the_gradient_is_largest_from_zero():
    schedule = RigL(begin=0, end=100, every=4, unit="step", fraction=0.7)
    kernels = sgd_kernels(schedule, 6)
    # The first choice waits for a gradient: of steps 1 to 4, entries 2 and 3 remain.
    assert (kernels[1:4, :2] == 0).all()
    # Then entry 0, whose gradient is largest, takes the place of the smaller one.
    kept = kernels[5] != 0
    assert kept.tolist() in ([True, False, False, True], [True, False, True, False])
    assert 0 < kernels[4, 0] < 0.2


def test_splicing_brings_back_what_has_grown_unseen():
    schedule = Splicing(begin=0, end=40, every=4, unit="step", initial=0.5)
    kernels = sgd_kernels(schedule, 30)
    assert (kernels[:3, :2] == 0).all()
    # Its gradient pulled entry 0 on while it was away; entry 3 decayed to nothing.
    assert kernels[-1, 0] > 1.0
    assert kernels[-1, 2] == pytest.approx(3.0)
    assert kernels[-1, 3] == 0


def test_taylor_keeps_what_the_loss_depends_on():
    model = keras.Sequential([keras.Input((4,)), L.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign([[5.0], [1.0], [5.0], [1.0]])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.ones((8, 4), "float32") * [0.01, 1.0, 0.02, 2.0]
    km_pruned = km.compress(
        model, km.Prune(0.5, criterion="taylor"), data=(x, np.zeros((8, 1)))
    ).model
    # The gradient is that of the output times the input: 0.05, 1, 0.1 and 2.
    assert zeros(km_pruned.layers[0].kernel[0]) == 1
    kept = to_numpy(km_pruned.layers[0].kernel).ravel() != 0
    assert kept.tolist() == [False, True, False, True]
    wanda = km.compress(model, km.Prune(0.5, criterion="wanda"), data=x).model
    np.testing.assert_array_equal(
        to_numpy(wanda.layers[0].kernel), to_numpy(km_pruned.layers[0].kernel)
    )


@pytest.mark.parametrize(
    "name",
    ["subclassed", "nested", "shared", "recurrent", "attention"],
)
def test_models_of_every_kind_are_pruned_as_they_train(name):
    kind = KINDS[name]
    model = kind.make()
    x = kind.inputs()
    y = np.zeros(model(x).shape, "float32")
    model.compile("sgd", "mse")
    pruning = km.callbacks.Pruning(km.Prune(0.5, end=0.0))
    model.fit(x, y, epochs=2, verbose=0, callbacks=[pruning])
    changed = [change for change in pruning.changes if change.changed]
    assert changed
    by_path = {v.path: v for v in model.variables}
    for change in changed:
        variable = by_path[change.weight]
        size = int(np.prod(variable.shape))
        assert zeros(variable) == pytest.approx(size // 2 / size)
    assert all(change.detail for change in pruning.changes)


def test_wanda_without_samples_is_an_error():
    with pytest.raises(
        ConfigError, match="needs samples of the layer inputs. Pass data="
    ):
        km.callbacks.Pruning(km.Prune(0.5, criterion="wanda"))
    with pytest.raises(ConfigError, match="'wanda' needs layer inputs.*data=None"):
        km.compress(network(), km.Prune(0.5, criterion="wanda"))
    with pytest.raises(ConfigError, match="'taylor' needs gradients.*data=None"):
        km.compress(network(), km.Prune(0.5, criterion="taylor"))


def test_a_training_that_ends_before_its_schedule_is_said():
    prune = km.Prune(0.75, schedule=Polynomial(begin=1, end=9, unit="epoch"))
    with pytest.warns(KerasMemWarning, match="instead of 0.750"):
        fit(network(), prune)
