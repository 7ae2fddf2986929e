"""Statistics of BatchNormalization follow what a compression did to the weights."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import KerasMemWarning
from kerasmem.files.data import drawn_batches
from kerasmem.graph.values import to_numpy
from tests.models import L, chain

NAME = "reestimate_batch_norm"
RNG = np.random.default_rng


def samples(count=256, seed=0):
    """Far from zero, so that the mean of what a layer makes moves with its weights."""
    x = RNG(seed).normal(20.0, 2.0, size=(count, 12)).astype("float32")
    return x, (x[:, :3] + x[:, 3:6]).argmax(1)


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(0)
    layers = []
    for number in range(2):
        layers += [L.Dense(24, name=f"hidden_{number}")]
        layers += [L.BatchNormalization(beta_initializer="ones", name=f"norm_{number}")]
        layers += [L.ReLU(name=f"relu_{number}")]
    model = chain((12,), *layers, L.Dense(3, activation="softmax", name="classes"))
    compiled(model).fit(*samples(), epochs=15, verbose=0)
    # What a training of many steps would have left.
    return km.compress(model, km.ReestimateBatchNorm(), data=samples()).model


def compiled(model):
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def copy(model, *, frozen=False):
    same = keras.models.clone_model(model)
    same.set_weights(model.get_weights())
    for layer in same.layers:
        if frozen and isinstance(layer, L.BatchNormalization):
            layer.trainable = False
    return compiled(same)


def statistics(model):
    return {v.path: to_numpy(v) for v in model.weights if "moving" in v.name}


def told(result):
    return [change for change in result.changes if change.technique == NAME]


def loss(model):
    return model.evaluate(*samples(seed=1), verbose=0)[0]


def check_gathered(model):
    """Check the first statistics against NumPy, on the samples that are drawn."""
    drawn = drawn_batches(samples(), 512, 32, part=0)
    x = np.concatenate([batch for batch, _, _ in drawn])
    assert len(x) == 128
    norm = model.get_layer("norm_0")
    values = keras.Model(model.inputs, norm.input).predict(x, verbose=0)
    for found, expected in (
        (norm.moving_mean, values.mean(0)),
        (norm.moving_variance, values.var(0)),
    ):
        np.testing.assert_allclose(to_numpy(found), expected, rtol=1e-3, atol=1e-3)


def without_data(model, step):
    with pytest.warns(KerasMemWarning, match=r"of 2 BatchNorm.*km\.ReestimateBatchNo"):
        return km.compress(model, step)


@pytest.mark.parametrize(
    "step",
    [
        km.Prune(0.8),
        km.Factorize(0.3),
        km.Cluster(2),
    ],
    ids=lambda step: step.name,
)
def test_statistics_are_those_of_the_model_as_it_is(trained, step):
    stale = without_data(trained, step)
    assert told(stale) == []
    found = km.compress(trained, step, data=samples())
    check_gathered(found.model)
    assert loss(found.model) < loss(stale.model)
    changed = {change.weight for change in told(found) if change.changed}
    assert changed == statistics(found.model).keys()
    assert told(found)[0].detail.startswith("re-estimated, ")


def test_training_between_steps_leaves_none_behind(trained):
    result = km.compress(
        trained, km.Prune(0.8), data=samples(), fine_tune_epochs=1, seed=0
    )
    check_gathered(result.model)
    assert len(told(result)) == 4


def test_they_stay_where_the_loss_would_rise(trained):
    stale = without_data(trained, km.Prune(0.8)).model
    x, _ = samples()
    model = copy(trained)
    model.compile("adam", "mse")
    # Labels that the model with its old statistics makes exactly.
    labels = stale.predict(x, verbose=0)
    result = km.compress(model, km.Prune(0.8), data=(x, labels))
    assert {change.changed for change in told(result)} == {False}
    assert told(result)[0].detail.startswith("unchanged: the loss would increase, ")
    for old, new in zip(stale.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_without_labels_outputs_are_compared_with_the_originals(trained):
    x, _ = samples()
    stale = without_data(trained, km.Prune(0.8)).model
    found = km.compress(trained, km.Prune(0.8), data=x).model
    given = trained.predict(x, verbose=0)
    apart = [np.square(m.predict(x, verbose=0) - given).mean() for m in (stale, found)]
    assert apart[1] < apart[0]


def test_nothing_changes_where_nothing_goes_or_it_is_frozen(trained):
    frozen = copy(trained, frozen=True)
    cases = [(trained, km.Prune(0.0)), (frozen, km.Prune(0.8)), (trained, "lossless")]
    for model, step in cases:
        for data in (samples(), None):
            result = km.compress(model, step, data=data)
            assert told(result) == []
            found = statistics(result.model).values()
            for old, new in zip(statistics(model).values(), found, strict=True):
                np.testing.assert_array_equal(old, new)


def test_what_is_asked_for_by_hand_is_done_once(trained):
    steps = [km.Prune(0.8), km.ReestimateBatchNorm()]
    result = km.compress(trained, steps, data=samples())
    assert len(told(result)) == len(result.model.weights)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_student_has_the_statistics_of_its_own_activations(trained, labelled):
    x, y = samples()
    student = km.make_student(trained, 0.5)
    data = (x, y) if labelled else x
    found = km.distill(trained, student, data, verbose=0, seed=0)
    check_gathered(found)


class Batches(keras.utils.PyDataset):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = np.arange(10 * index, 10 * index + 10)
        return x, -x, x + 0.5


def rows(data, count, part):
    batches = list(drawn_batches(data, count, 8, part=part))
    return [np.concatenate(arrays) for arrays in zip(*batches, strict=True)]


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "data", [(np.arange(60), -np.arange(60), np.arange(60) + 0.5), Batches(6)]
)
def test_samples_are_drawn_from_all_of_the_data_in_two_parts(data):
    parts = [rows(data, 24, part) for part in (0, 1)]
    assert [len(x) for x, _, _ in parts] == [24, 24]
    drawn = np.concatenate([x for x, _, _ in parts])
    assert len(np.unique(drawn)) == 48
    assert drawn.min() < 15
    assert drawn.max() > 45
    for x, y, weight in parts:
        np.testing.assert_array_equal(y, -x)
        np.testing.assert_array_equal(weight, x + 0.5)
    np.testing.assert_array_equal(rows(data, 24, 0)[0], parts[0][0])
    assert sorted(
        rows(data, 99, 0)[0].tolist() + rows(data, 99, 1)[0].tolist()
    ) == list(range(60))


@pytest.mark.one_backend
def test_one_batch_is_both_parts():
    first, second = (rows(Batches(1), 99, part)[0] for part in (0, 1))
    np.testing.assert_array_equal(first, second)
    alone = list(drawn_batches((np.ones((1, 2)),), 9, 8, part=1))
    assert [(x.shape, y, weight) for x, y, weight in alone] == [((1, 2), None, None)]
