"""Layers inside of teacher and student are found, paired and compared."""

import keras
import numpy as np
import pytest

from kerasmem.compression.distill import Distiller, distill
from kerasmem.compression.distill.features import FeatureReader, FeatureRef
from kerasmem.compression.distill.losses import (
    DKD,
    AttentionTransfer,
    Features,
    Logits,
    Relational,
)
from kerasmem.compression.distill.pairing import pair_layers, probe_models
from kerasmem.errors import ConfigError, ModelError
from tests.compression.distill import papers

SAMPLES, CLASSES = 16, 3
LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
layers = keras.layers


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, 8, 8, 2)).astype("float32")
    return x, rng.integers(0, CLASSES, SAMPLES)


def compiled(model):
    model.compile(keras.optimizers.SGD(0.05), LOGITS, metrics=["accuracy"])
    return model


def stage(width, number):
    return [
        layers.Conv2D(width, 3, padding="same", name=f"conv_{number}"),
        layers.BatchNormalization(name=f"norm_{number}"),
        layers.ReLU(name=f"relu_{number}"),
    ]


def images(width, stages=(1, 1)):
    """A convolutional network with `stages[i]` convolutions of each image size."""
    body, number = [keras.Input((8, 8, 2))], 0
    for place, count in enumerate(stages):
        if place:
            body.append(layers.MaxPooling2D(name=f"pool_{place}"))
        for _ in range(count):
            body += stage(width, number)
            number += 1
    head = [
        layers.GlobalAveragePooling2D(name="average"),
        layers.Dropout(0.1, name="drop"),
        layers.Dense(CLASSES, name="head"),
    ]
    return compiled(keras.Sequential([*body, *head]))


def vectors(*widths, name=None):
    hidden = [layers.Dense(w, "tanh", name=f"h{i}") for i, w in enumerate(widths)]
    body = [keras.Input((5,)), *hidden, layers.Dense(CLASSES, name="head")]
    return compiled(keras.Sequential(body, name=name))


def paired(loss, teacher, student, sample=None):
    models = teacher, student
    found = pair_layers(loss, models, probe_models(*models, sample))
    return [(a.path, b.path) for a, b in found]


def value(tensor):
    return keras.ops.convert_to_numpy(tensor).astype("float64")


def logs_of(teacher, student, x, y, **options):
    model = Distiller(teacher, student, **options)
    model.compile(keras.optimizers.SGD(0.1), LOGITS)
    return model.evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True)


# Which layers are compared


@pytest.mark.one_backend
def test_images_are_paired_where_they_have_one_size():
    found = paired(Features(), images(8, (2, 3)), images(4))
    sizes = [("relu_1", "relu_0"), ("relu_4", "relu_1")]
    assert found == [*sizes, ("average", "average")]
    assert paired(AttentionTransfer(), images(8, (2, 3)), images(4)) == sizes


@pytest.mark.one_backend
def test_vectors_are_paired_by_depth():
    teacher, student = vectors(9, 8, 7, 6), vectors(4, 3)
    assert paired(Features(), teacher, student) == [("h1", "h0"), ("h3", "h1")]
    assert paired(Relational(), teacher, student) == [("h3", "h1")]


@pytest.mark.one_backend
def test_layers_are_paired_by_name_regular_expression_and_path():
    teacher, student = images(8, (2, 2)), images(4, (2, 2))
    assert paired(Features(layers="conv_1"), teacher, student) == [("conv_1",) * 2]
    found = paired(Features(layers=[(r"relu_[13]", r"norm_[02]")]), teacher, student)
    assert found == [("relu_1", "norm_0"), ("relu_3", "norm_2")]

    inputs = keras.Input((5,))
    nested = compiled(keras.Model(inputs, vectors(6, 4, name="inner")(inputs)))
    found = paired(Features(layers=[("h1", "inner/h0")]), vectors(9, 8), nested)
    assert found == [("h1", "inner/h0")]
    assert paired(Features(), vectors(9, 8), nested) == [
        ("h0", "inner/h0"),
        ("h1", "inner/h1"),
    ]


class Own(keras.Model):
    """A model that only its `call` describes."""

    def __init__(self, width):
        super().__init__()
        self.first = layers.Dense(width, "tanh", name="first")
        self.last = layers.Dense(CLASSES, name="last")

    def call(self, inputs):
        return self.last(self.first(inputs))


def test_subclassed_models_are_looked_into_as_well():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    y = np.arange(SAMPLES) % CLASSES
    teacher, student = compiled(Own(8)), vectors(4)
    trained = distill(teacher, student, (x, y), losses=Features(), verbose=0)
    assert type(trained) is keras.Sequential
    assert paired(Features(), teacher, student, x[:1]) == [("first", "h0")]
    with pytest.raises(ModelError, match="input shape of the .* is unknown"):
        Distiller(teacher, student, losses=Features())


# What is computed


def test_features_are_those_of_the_layers_and_of_the_same_pass(data):
    x, y = data
    teacher, student = images(6), images(4)
    losses = [AttentionTransfer(weight=3.0), Relational(kind="similarity", weight=2.0)]
    logs = logs_of(teacher, student, x, y, losses=losses, hard_weight=0.0)

    def features(model):
        names = ["relu_0", "relu_1", "average"]
        outputs = [model.get_layer(name).output for name in names]
        return [value(f) for f in keras.Model(model.inputs[0], outputs)(x)]

    taught, learned = features(teacher), features(student)
    expected = 2 * papers.similarity_preserving(taught[2], learned[2])
    for t, s in zip(taught[:2], learned[:2], strict=True):
        expected += 3 * papers.attention_transfer(t, s)
    np.testing.assert_allclose(logs["distillation_loss"], expected, rtol=1e-4)


def test_a_step_runs_each_model_once():
    calls = []

    class Counted(layers.Layer):
        def call(self, x):
            calls.append(self.name)
            return x

    def counted(name, width):
        model = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(width, name="hidden"),
                Counted(name=name),
                layers.Dense(CLASSES),
            ]
        )
        model.compile("sgd", LOGITS, run_eagerly=True)
        return model

    teacher, student = counted("teacher", 6), counted("student", 4)
    model = Distiller(teacher, student, losses=[Logits(), Features(layers="hidden")])
    model.compile("sgd", LOGITS, run_eagerly=True)
    x, y = np.ones((4, 5), "float32"), np.zeros(4, "int32")
    model.fit(x, y, verbose=0)
    once = len(calls)
    calls.clear()
    model.fit(x, y, verbose=0)
    assert sorted(calls) == ["student", "teacher"]
    assert once >= 2


def test_projections_are_trained_along_and_dropped(data):
    loss = Features()
    x, y = data
    teacher, student = images(6), images(4)
    model = Distiller(teacher, student, losses=loss)
    model.compile(keras.optimizers.SGD(0.1), LOGITS)
    heads = [v for v in model.trainable_variables if "projection" in v.path]
    before = [value(v) for v in heads]
    model.fit(x, y, verbose=0)
    assert heads
    for variable, then in zip(heads, before, strict=True):
        assert not np.array_equal(value(variable), then)

    trained = distill(teacher, student, data, losses=loss, verbose=0)
    assert [w.shape for w in trained.weights] == [w.shape for w in student.weights]
    assert type(trained) is keras.Sequential
    assert all("call" not in vars(layer) for layer in teacher.layers)


def test_a_student_comes_nearer_to_the_features_of_its_teacher():
    x = np.random.default_rng(0).normal(size=(64, 5)).astype("float32")
    trained = distill(
        vectors(8, 6),
        vectors(8, 4),
        x,
        losses=["features", "logits"],
        epochs=20,
        verbose=0,
    )
    history = trained.history.history["loss"]
    assert history[-1] < 0.7 * history[0]


def test_sample_weights_count_in_features_as_in_a_mean():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    teacher, student = vectors(6), vectors(6)
    model = Distiller(teacher, student, losses=Features(), hard_weight=0.0)
    model.compile("sgd", LOGITS)
    weights = np.linspace(0, 2, SAMPLES)
    y = np.zeros(SAMPLES)
    logs = model.evaluate(
        x, y, batch_size=SAMPLES, sample_weight=weights, verbose=0, return_dict=True
    )
    a, b = (value(m.layers[0](x)) for m in (teacher, student))
    expected = np.mean(weights * np.mean((a - b) ** 2, axis=1))
    np.testing.assert_allclose(logs["distillation_loss"], expected, rtol=1e-5)


def test_states_of_a_recurrent_layer_are_features_too():
    def reader(width):
        inputs = keras.Input((4, 3))
        _, state, cell = layers.LSTM(width, return_state=True, name="lstm")(inputs)
        outputs = layers.Dense(CLASSES)(layers.Concatenate()([state, cell]))
        return compiled(keras.Model(inputs, outputs))

    x = np.random.default_rng(0).normal(size=(SAMPLES, 4, 3)).astype("float32")
    teacher = reader(5)
    _, refs = FeatureReader(teacher, [FeatureRef("lstm", 2)])(x)
    cell = keras.Model(teacher.inputs[0], teacher.get_layer("lstm").output[2])(x)
    np.testing.assert_allclose(
        value(refs[FeatureRef("lstm", 2)]), value(cell), rtol=1e-5
    )
    losses = [Features(layers="lstm:2"), Relational(layers="lstm:1")]
    distill(teacher, reader(4), (x, np.zeros(SAMPLES)), losses=losses, verbose=0)


def test_sequences_with_masks_teach_by_answers_and_by_features(tmp_path):
    def tagger(width):
        words = keras.Input((None,), dtype="int32")
        hidden = layers.Embedding(9, width, mask_zero=True, name="words")(words)
        hidden = layers.LSTM(width, return_sequences=True, name="lstm")(hidden)
        return compiled(keras.Model(words, layers.Dense(CLASSES)(hidden)))

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (SAMPLES, 4)), rng.integers(0, CLASSES, (SAMPLES, 4))
    losses = [
        "logits",
        "dkd",
        "features",
        Relational(kind="similarity", layers="words"),
    ]
    options = {"losses": losses, "verbose": 0, "seed": 1, "batch_size": 8}
    teacher, student = tagger(5), tagger(4)
    asked, kept = (
        distill(teacher, student, (x, y), cache=cache, **options).history.history
        for cache in (None, tmp_path)
    )
    for name, values in asked.items():
        np.testing.assert_allclose(kept[name], values, rtol=0.01, err_msg=name)


def test_half_precision_and_statistics_of_a_student_hold(data):
    x, y = data
    teacher, student = images(6), images(4)
    half = keras.models.clone_model(
        student,
        clone_function=lambda layer: type(layer).from_config(
            layer.get_config() | {"dtype": "mixed_bfloat16"}
        ),
    )
    half.set_weights(student.get_weights())
    losses = ["logits", "relational", AttentionTransfer()]
    full = logs_of(teacher, student, x, y, losses=losses)
    logs = logs_of(teacher, compiled(half), x, y, losses=losses)
    np.testing.assert_allclose(logs["loss"], full["loss"], rtol=0.05)
    distill(teacher, half, (x, y), losses=["features", "relational"], verbose=0)


def test_validation_leaves_the_students_statistics_alone(data):
    model = Distiller(images(6), images(4), losses=["features", "logits"])
    model.compile("sgd", LOGITS)
    before = [value(v) for v in model.student.non_trainable_variables]
    model.evaluate(*data, verbose=0)
    after = [value(v) for v in model.student.non_trainable_variables]
    for then, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(then, now)


# Schedules, several teachers


def test_scheduled_weights_and_temperatures_change_with_every_step():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    teacher, student = vectors(6), vectors(4)
    falling = keras.optimizers.schedules.PolynomialDecay(8.0, 2, 2.0)
    loss = Logits(temperature=falling, weight=lambda step: 1 + step)
    frozen = keras.optimizers.SGD(0.0)
    found = distill(
        teacher, student, x, losses=loss, epochs=3, optimizer=frozen, verbose=0
    ).history.history["loss"]
    expected = []
    for weight, temperature in ((1, 8), (2, 5), (3, 2)):
        plain = Logits(temperature=temperature, weight=weight)
        run = distill(teacher, student, x, losses=plain, optimizer=frozen, verbose=0)
        expected += run.history.history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("backup", [False, True])
def test_schedules_continue_in_a_resumed_training(backup, tmp_path):
    class Interruption(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def model():
        model = Distiller(teacher, student, losses=loss)
        model.compile(keras.optimizers.SGD(0.0))
        return model

    x = np.tile(np.random.default_rng(0).normal(size=(4, 5)), (3, 1)).astype("float32")
    teacher, student = vectors(6), vectors(4)
    loss = Logits(weight=lambda step: 1 + step)
    fit = {"batch_size": 4, "verbose": 0, "epochs": 4, "shuffle": False}
    backups = [keras.callbacks.BackupAndRestore(tmp_path)] if backup else []
    if backup:
        with pytest.raises(KeyboardInterrupt):
            model().fit(x, callbacks=[*backups, Interruption()], **fit)
    fit |= {} if backup else {"initial_epoch": 2}
    found = model().fit(x, callbacks=backups, **fit).history["loss"]
    unit = model().fit(x[:4], batch_size=4, verbose=0).history["loss"][0]
    # Three steps an epoch: the mean weights are 8 in the third and 11 in the fourth.
    np.testing.assert_allclose(found, [8 * unit, 11 * unit], rtol=1e-5)


def test_only_steps_of_the_training_are_counted():
    x = np.random.default_rng(0).normal(size=(8, 5)).astype("float32")
    loss = Logits(weight=lambda step: step)
    model = Distiller(vectors(6), vectors(4), losses=loss)
    model.compile(keras.optimizers.SGD(0.0))
    fit = {"batch_size": 4, "verbose": 0, "shuffle": False}
    first, second = (
        model.fit(x, validation_data=(x,), **fit).history for _ in range(2)
    )
    unit = model.evaluate(x, verbose=0, return_dict=True)["loss"] / 4
    halves = [
        model.evaluate(half, verbose=0, return_dict=True)["loss"] / 4
        for half in (x[:4], x[4:])
    ]
    np.testing.assert_allclose(first["loss"], [halves[1] / 2], rtol=1e-5)
    np.testing.assert_allclose(first["val_loss"], [2 * unit], rtol=1e-5)
    expected = (2 * halves[0] + 3 * halves[1]) / 2
    np.testing.assert_allclose(second["loss"], [expected], rtol=1e-5)


def test_several_teachers_count_by_their_weights():
    x = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    teachers, student = [vectors(6), vectors(5)], vectors(4)
    losses = [Logits(), Relational(kind="similarity")]
    y = np.zeros(SAMPLES)
    alone = [logs_of(t, student, x, y, losses=losses) for t in teachers]
    both = logs_of(teachers, student, x, y, losses=losses, teacher_weights=(3, 1))
    a, b = (logs["distillation_loss"] for logs in alone)
    np.testing.assert_allclose(
        both["distillation_loss"], 0.75 * a + 0.25 * b, rtol=1e-5
    )


# What is refused


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"losses": Features(layers="conv_7")},
            ModelError,
            "no layer 'conv_7'. The nearest names: conv_[01], ",
        ),
        (
            {"losses": Features(layers=[("conv_.", "conv_0")])},
            ModelError,
            "with 2 layers of the teacher, 'conv_0' with 1 of the student",
        ),
        (
            {"losses": Features(layers="conv_0:1")},
            ModelError,
            "returns 1 tensors. Received: 'conv_0:1'",
        ),
        (
            {"losses": Features(layers=[("conv_0", "average")])},
            ModelError,
            "may differ only in the last axis. Received: 'conv_0' of the teacher",
        ),
        (
            {"losses": AttentionTransfer(layers="average")},
            ModelError,
            "same places before their last axis",
        ),
        (
            {"teacher_weights": (1, 2)},
            ConfigError,
            r"for each teacher \(1\), and not all 0",
        ),
        ({"teacher_weights": "equal"}, ConfigError, "a list of numbers"),
        ({"losses": "kd"}, ConfigError, "`loss` of a config must be one of"),
        ({"losses": "logit"}, ConfigError, r"'logit'. Did you mean 'logits'\?"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        Distiller(images(6), images(4), **options)


@pytest.mark.one_backend
def test_losses_for_classes_are_refused_for_values_and_without_labels():
    x = np.ones((SAMPLES, 5), "float32")
    teacher, student = vectors(6), vectors(4)
    with pytest.raises(ConfigError, match="DKD needs labels, but the data has none"):
        distill(teacher, student, x, losses=DKD(), verbose=0)
    for model in (teacher, student):
        model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="DKD needs the class outputs of a classifier"):
        distill(teacher, student, (x, x[:, :3]), losses=DKD(), verbose=0)


@pytest.mark.one_backend
def test_models_without_layers_in_common_are_told_so():
    flat = compiled(
        keras.Sequential([keras.Input((8, 8, 2)), layers.Flatten(), layers.Dense(3)])
    )
    with pytest.raises(ModelError, match="fit each other by shape and depth"):
        Distiller(images(6), flat, losses=Features())
    with pytest.raises(ModelError, match="depth: attention .* as in images"):
        Distiller(vectors(6), vectors(4), losses=AttentionTransfer())


@pytest.mark.parametrize("jit", [False, True])
def test_a_student_is_trained_with_everything_that_fit_offers(jit, backend):
    if jit and backend == "torch":
        jit = "auto"  # Keras leaves torch uncompiled unless told
    x = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    y = np.arange(SAMPLES) % CLASSES
    falling = keras.optimizers.schedules.PolynomialDecay(4.0, 20, 2.0)
    losses = [Logits(temperature=falling), Relational()]
    model = Distiller(vectors(6), vectors(4), losses=losses)
    steps = 1 if backend == "torch" else 2
    model.compile("adam", LOGITS, jit_compile=jit, steps_per_execution=steps)
    before = [value(w) for w in model.student.weights]
    stopping = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    history = model.fit(
        x,
        y,
        batch_size=4,
        epochs=5,
        class_weight={0: 1.0, 1: 2.0, 2: 0.0},
        callbacks=[stopping],
        verbose=0,
    ).history
    assert len(history["loss"]) < 5
    after = [value(w) for w in model.student.weights]
    assert not any(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
