"""A student learns what its teacher knows, and nothing else changes."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, rel_entr, softmax

from kerasmem.callbacks import Pruning
from kerasmem.compression.distill import Distiller, distill
from kerasmem.compression.distill.losses.outputs import categorical_divergence
from kerasmem.compression.prune import Prune
from kerasmem.errors import ConfigError, DataError, ModelError

SAMPLES, FEATURES, CLASSES = 24, 5, 3
TEMPERATURE, HARD_WEIGHT = 3.0, 0.3
SPARSE = keras.losses.SparseCategoricalCrossentropy
LOGITS = SPARSE(from_logits=True)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, SAMPLES)


def classifier(units=4, activation=None, classes=CLASSES, loss=LOGITS, extra=()):
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(units, activation="tanh"),
            *extra,
            keras.layers.Dense(classes, activation=activation),
        ]
    )
    if loss is not None:
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def distiller(teacher, student, **arguments):
    arguments = {"temperature": TEMPERATURE, "hard_weight": HARD_WEIGHT} | arguments
    model = Distiller(teacher, student, **arguments)
    model.compile(keras.optimizers.SGD(0.1), student.loss)
    return model


def test_a_training_that_leaves_nan_is_an_error(data):
    x, y = data
    x[3, 2] = np.nan
    with pytest.raises(ModelError, match="Training left NaN or infinity .*kernel"):
        distill(classifier(8), classifier(), (x, y), verbose=0)


def judged(model, x, y):
    return model.evaluate(x, y, verbose=0, return_dict=True)


def logs_of(model, x, y=None, sample_weight=None, batch_size=8):
    """The losses over several batches, before anything is learned."""
    return model.evaluate(
        x,
        y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        verbose=0,
        return_dict=True,
    )


def predict(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False)).astype("float64")


def divergence(teacher_logits, student_logits):
    """T^2 KL per sample, by SciPy."""
    taught = softmax(teacher_logits / TEMPERATURE, axis=-1)
    learned = softmax(student_logits / TEMPERATURE, axis=-1)
    return TEMPERATURE**2 * rel_entr(taught, learned).sum(axis=-1)


def cross_entropy(logits, labels):
    return -np.log(softmax(logits, axis=-1)[np.arange(len(labels)), labels])


def weights_of(model):
    return [np.array(value) for value in model.get_weights()]


def assert_equal_weights(model, weights):
    for now, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(now, before)


# The loss


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_is_that_of_hinton_computed_by_scipy(data, weighted):
    x, y = data
    sample_weight = np.linspace(0, 2, SAMPLES) if weighted else None
    teacher, student = classifier(8), classifier()
    logs = logs_of(distiller(teacher, student), x, y, sample_weight)

    weights = np.ones(SAMPLES) if sample_weight is None else sample_weight
    soft = weights * divergence(predict(teacher, x), predict(student, x))
    hard = weights * cross_entropy(predict(student, x), y)
    expected = HARD_WEIGHT * hard.mean() + (1 - HARD_WEIGHT) * soft.mean()
    np.testing.assert_allclose(logs["distillation_loss"], soft.mean(), rtol=1e-5)
    np.testing.assert_allclose(logs["student_loss"], hard.mean(), rtol=1e-5)
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize("softened", ["teacher", "student", "both"])
def test_a_model_that_ends_in_softmax_is_as_good_as_its_logits(data, softened):
    x, y = data
    ends = {
        name: "softmax" if softened in {name, "both"} else None
        for name in ("teacher", "student")
    }
    losses = {None: LOGITS, "softmax": SPARSE()}
    plain = {"teacher": classifier(8), "student": classifier()}
    ended = {
        name: classifier(8 if name == "teacher" else 4, end, loss=losses[end])
        for name, end in ends.items()
    }
    for name, model in ended.items():
        model.set_weights([3 * w for w in plain[name].get_weights()])
        plain[name].set_weights(model.get_weights())
    found = logs_of(distiller(**ended), x, y)
    expected = logs_of(distiller(**plain), x, y)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)


def test_yes_or_no_answers_are_compared_one_by_one(data):
    x, _ = data
    y = np.random.default_rng(1).integers(0, 2, (SAMPLES, CLASSES))
    binary = keras.losses.BinaryCrossentropy
    teacher = classifier(8, "sigmoid", loss=binary())
    student = classifier(loss=binary(from_logits=True))
    logs = logs_of(distiller(teacher, student), x, y)

    taught = predict(teacher, x)
    taught = expit((np.log(taught) - np.log1p(-taught)) / TEMPERATURE)
    learned = expit(predict(student, x) / TEMPERATURE)
    soft = rel_entr(taught, learned) + rel_entr(1 - taught, 1 - learned)
    expected = TEMPERATURE**2 * soft.mean()
    np.testing.assert_allclose(logs["distillation_loss"], expected, rtol=1e-5)


def test_values_are_compared_by_their_mean_squared_error(data):
    x, _ = data
    y = np.zeros((SAMPLES, 2))
    teacher = classifier(8, classes=2, loss="mse")
    student = classifier(classes=2, loss="mae")
    logs = logs_of(distiller(teacher, student), x, y)
    expected = np.mean((predict(teacher, x) - predict(student, x)) ** 2)
    np.testing.assert_allclose(logs["distillation_loss"], expected, rtol=1e-5)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    logits=arrays("float32", (2, 4), elements=st.floats(-20, 20, width=32)),
    shift=st.floats(-50, 50),
    temperature=st.floats(0.5, 20),
)
def test_equal_answers_are_at_distance_zero_and_others_beyond(
    logits, shift, temperature
):
    def loss(teacher, student):
        pair = (
            keras.ops.convert_to_tensor(teacher),
            keras.ops.convert_to_tensor(student),
        )
        return float(keras.ops.mean(categorical_divergence(*pair, temperature)))

    assert loss(logits, logits + np.float32(shift)) == pytest.approx(0, abs=1e-2)
    assert loss(logits, np.ascontiguousarray(logits[::-1])) >= -1e-4


def test_what_a_layer_adds_to_the_loss_counts_in_full(data):
    penalized = keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.1))
    teacher, student = classifier(8), classifier(extra=[penalized])
    penalty = 0.1 * np.sum(penalized.get_weights()[0] ** 2)
    logs = logs_of(distiller(teacher, student), *data)
    labels = logs["student_loss"] - penalty
    expected = HARD_WEIGHT * labels + (1 - HARD_WEIGHT) * logs["distillation_loss"]
    np.testing.assert_allclose(logs["loss"], expected + penalty, rtol=1e-5)


def test_several_outputs_are_compared_each_in_its_own_way(data):
    x, y = data

    def two_headed(units):
        inputs = keras.Input((FEATURES,))
        hidden = keras.layers.Dense(units, activation="tanh")(inputs)
        outputs = {
            "size": keras.layers.Dense(1, name="last")(hidden),
            "kind": keras.layers.Dense(CLASSES, name="first")(hidden),
        }
        model = keras.Model(inputs, outputs)
        model.compile("sgd", {"size": "mse", "kind": LOGITS})
        return model

    teacher, student = two_headed(8), two_headed(4)
    labels = {"size": np.ones((SAMPLES, 1), "float32"), "kind": y}
    logs = logs_of(distiller(teacher, student), x, labels)

    taught, learned = teacher.predict(x, verbose=0), student.predict(x, verbose=0)
    kind = divergence(taught["kind"].astype("f8"), learned["kind"].astype("f8"))
    size = np.mean((taught["size"] - learned["size"]) ** 2)
    expected = kind.mean() + size
    np.testing.assert_allclose(logs["distillation_loss"], expected, rtol=1e-5)


def test_samples_of_weight_zero_teach_nothing(data):
    student = classifier()
    trained = distill(
        classifier(8), student, (*data, np.zeros(SAMPLES)), epochs=2, verbose=0
    )
    assert_equal_weights(trained, weights_of(student))


def test_class_weights_reach_the_teachers_part_too(data):
    x, y = data
    model = distiller(classifier(8), classifier(), hard_weight=0.0)
    before = weights_of(model.student)
    model.fit(x, y, class_weight=dict.fromkeys(range(CLASSES), 0.0), verbose=0)
    assert_equal_weights(model.student, before)


def test_a_mixed_precision_student_learns_from_a_float32_teacher(data):
    teacher, student = classifier(8), classifier()
    half = keras.models.clone_model(
        student,
        clone_function=lambda layer: type(layer).from_config(
            layer.get_config() | {"dtype": "mixed_bfloat16"}
        ),
    )
    half.set_weights(student.get_weights())
    half.compile("sgd", LOGITS)
    full = logs_of(distiller(teacher, student), *data)
    logs = logs_of(distiller(teacher, half), *data)
    np.testing.assert_allclose(logs["loss"], full["loss"], rtol=0.03)


# What training leaves behind


def test_teacher_and_student_are_left_as_they_were(data):
    def noisy(units):
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        return classifier(units, extra=layers)

    teacher, student = noisy(8), noisy(4)
    teacher.layers[0].trainable = False
    flags = [layer.trainable for layer in teacher.layers]
    before = {model: weights_of(model) for model in (teacher, student)}
    optimizers = {model: model.optimizer for model in (teacher, student)}

    trained = distill(teacher, student, data, epochs=2, verbose=0)

    for model, weights in before.items():
        assert_equal_weights(model, weights)
        assert model.optimizer is optimizers[model]
        assert int(model.optimizer.iterations) == 0
    assert teacher.trainable
    assert [layer.trainable for layer in teacher.layers] == flags
    for now, then in zip(trained.get_weights()[:6], before[student][:6], strict=True):
        assert not np.array_equal(now, then)


def test_an_interrupted_training_leaves_the_teacher_whole(data):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    teacher = classifier(8)
    before = weights_of(teacher)
    with pytest.raises(KeyboardInterrupt):
        distill(teacher, classifier(), data, callbacks=[Interrupt()], verbose=0)
    assert_equal_weights(teacher, before)


def test_the_student_learns_to_answer_as_its_teacher(data):
    x, _ = data
    teacher, student = classifier(8), classifier()
    trained = distill(teacher, student, x, epochs=60, batch_size=8, verbose=0)
    history = trained.history.history
    assert set(history) == {"loss", "distillation_loss"}
    assert history["loss"][-1] < 0.2 * history["loss"][0]


def test_history_has_the_students_metrics(data):
    teacher = classifier(8)
    trained = distill(
        teacher, classifier(), data, validation_data=data, epochs=2, verbose=0
    )
    names = {"loss", "student_loss", "distillation_loss", "accuracy"}
    names |= {f"val_{name}" for name in names}
    assert set(trained.history.history) == names
    assert trained.history.model is trained
    found = judged(trained, *data)
    np.testing.assert_allclose(
        found["loss"], trained.history.history["val_student_loss"][-1], rtol=1e-5
    )


@pytest.mark.one_backend
def test_data_that_can_be_read_once_judges_the_student_alone(data):
    def samples():
        while True:
            yield data

    model = Distiller(classifier(8), classifier())
    model.compile("sgd", LOGITS, metrics=["accuracy"])
    options = {"validation_data": samples(), "validation_steps": 1}
    names = set(model.fit(*data, verbose=0, **options).history)
    assert "val_accuracy" in names
    assert not any("teacher" in name for name in names)


def test_the_student_is_one_file_that_stock_keras_opens(data, tmp_path):
    x, _ = data
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "checkpoint.keras")
    trained = distill(
        classifier(8), classifier(), data, callbacks=[checkpoint], verbose=0
    )
    trained.save(tmp_path / "student.keras")
    for name in ("student", "checkpoint"):
        opened = keras.models.load_model(tmp_path / f"{name}.keras")
        assert type(opened) is keras.Sequential
        np.testing.assert_array_equal(predict(opened, x), predict(trained, x))


def test_batches_teach_as_arrays_do(data):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return data

    teacher, student = classifier(8), classifier()
    whole = distill(teacher, student, data, batch_size=SAMPLES, verbose=0)
    batches = distill(teacher, student, Batches(), validation_data=data, verbose=0)
    for now, then in zip(batches.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(now, then, atol=1e-6)


def test_one_seed_gives_one_student(data):
    student = classifier(extra=[keras.layers.Dropout(0.5)])
    first, second = (
        distill(classifier_of(student), student, data, batch_size=8, verbose=0, seed=3)
        for _ in range(2)
    )
    assert_equal_weights(first, weights_of(second))


def classifier_of(model):
    """A model that always answers the same."""
    teacher = keras.models.clone_model(model)
    teacher.set_weights([np.full_like(w, 0.1) for w in model.get_weights()])
    return teacher


def test_a_student_is_pruned_while_it_learns(data):
    pruning = Pruning(Prune(0.5, include="kernel"))
    trained = distill(
        classifier(8), classifier(), data, epochs=2, callbacks=[pruning], verbose=0
    )
    kernels = [layer.kernel for layer in trained.layers]
    zeros = [np.mean(keras.ops.convert_to_numpy(kernel) == 0) for kernel in kernels]
    assert zeros == [0.5, 0.5]
    assert [v.constraint for v in trained.variables] == [None] * 4


def test_what_a_layer_knows_besides_its_weights_is_the_students_too(data):
    x, y = data
    x = 3 * x + 5
    normalization = keras.layers.Normalization()
    normalization.adapt(x)
    student = keras.Sequential(
        [keras.Input((FEATURES,)), normalization, keras.layers.Dense(CLASSES)]
    )
    student.compile("sgd", LOGITS)
    trained = distill(
        classifier(8), student, (x, y), optimizer=keras.optimizers.SGD(0.0), verbose=0
    )
    np.testing.assert_array_equal(predict(trained, x), predict(student, x))


def test_a_loss_and_an_optimizer_given_replace_the_students_own(data):
    student = classifier(loss=None)
    optimizer = keras.optimizers.SGD(0.05)
    trained = distill(
        classifier(8), student, data, loss=LOGITS, optimizer=optimizer, verbose=0
    )
    assert not optimizer.built
    assert trained.optimizer is not optimizer
    assert float(trained.optimizer.learning_rate) == pytest.approx(0.05)
    assert set(judged(trained, *data)) == {"loss"}


def test_a_subclassed_teacher_without_weights_is_built_from_the_data(data):
    class Teacher(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(CLASSES)

        def call(self, inputs):
            return self.dense(inputs)

    teacher = Teacher()
    teacher.compile(loss=LOGITS)
    trained = distill(teacher, classifier(), data, verbose=0)
    logs = trained.history.history
    soft = divergence(predict(teacher, data[0]), predict(trained, data[0])).mean()
    assert logs["distillation_loss"][0] == pytest.approx(soft, rel=0.5)


# What is refused


@pytest.mark.one_backend
def test_outputs_of_another_size_are_refused(data):
    with pytest.raises(ModelError, match=r"shape \(batch, 4\) of the teacher, shape"):
        distill(classifier(classes=4), classifier(), data, verbose=0)


@pytest.mark.one_backend
def test_a_teacher_that_answers_another_question_is_refused(data):
    teacher = classifier(8, "sigmoid", loss="binary_crossentropy")
    student = classifier(4, "softmax", loss=SPARSE())
    with pytest.raises(ModelError, match="must have the same task"):
        distill(teacher, student, data, verbose=0)


@pytest.mark.one_backend
def test_a_teacher_whose_answers_cannot_be_read_is_refused(data):
    class Opaque(keras.layers.Layer):
        def call(self, inputs):
            return inputs

    teacher = classifier(8, loss=None)
    teacher.add(Opaque())
    with pytest.raises(ModelError, match="compile the teacher with its training loss"):
        distill(teacher, classifier(), data, verbose=0)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0}, r"above 0\. Received: temperature=0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        (
            {"hard_weight": 1.5},
            r"at least 0 and at most 1\. Received: hard_weight=1\.5",
        ),
        ({"epochs": 0}, "a whole number from 1. Received: epochs=0"),
    ],
)
def test_an_argument_out_of_range_is_refused(data, arguments, message):
    with pytest.raises(ConfigError, match=message):
        distill(classifier(8), classifier(), data, **arguments)


@pytest.mark.one_backend
def test_a_student_without_a_loss_is_refused(data):
    with pytest.raises(ConfigError, match="is not compiled, so it has no loss"):
        distill(classifier(8), classifier(loss=None), data)


@pytest.mark.one_backend
def test_a_weight_of_labels_that_are_not_there_is_refused(data):
    with pytest.raises(ConfigError, match="no labels, .*Received: hard_weight=1.0"):
        distill(classifier(8), classifier(), data[0], hard_weight=1.0)


@pytest.mark.one_backend
def test_labels_of_no_class_are_refused(data):
    x, y = data
    far = (x, y + 1)
    for arguments in ({"data": far}, {"data": data, "validation_data": far}):
        with pytest.raises(DataError, match="has 3 classes. Expected: .*from 1 to 3"):
            distill(classifier(8), classifier(), **arguments)


@pytest.mark.one_backend
def test_data_of_another_shape_is_refused(data):
    with pytest.raises(DataError, match="does not fit input"):
        distill(classifier(8), classifier(), (np.zeros((4, 7)), np.zeros(4)))


@pytest.mark.one_backend
def test_a_distiller_wants_two_models_and_a_teacher_with_weights(data):
    model = classifier()
    with pytest.raises(ModelError, match=r"Received: teacher='teacher\.keras' of"):
        Distiller("teacher.keras", model)
    with pytest.raises(ModelError, match=r"distill\(teacher, student, data\)") as found:
        distill(data, model, model)
    assert "Received: teacher=(...) of type ndarray." in str(found.value)
    with pytest.raises(ModelError, match="are the same model"):
        Distiller(model, model)
    unbuilt = keras.Sequential([keras.layers.Dense(CLASSES)])
    with pytest.raises(ModelError, match="has no weights yet"):
        Distiller(unbuilt, model)


def test_labels_are_those_of_the_student_the_teacher_may_name_its_outputs_otherwise():
    def two_headed(*names):
        inputs = keras.Input((4,))
        heads = [keras.layers.Dense(3, name=name)(inputs) for name in names]
        return keras.Model(inputs, heads)

    teacher, student = two_headed("p", "q"), two_headed("r", "s")
    student.compile("sgd", {"r": "mse", "s": "mse"})
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    labels = {"r": x[:, :3], "s": x[:, 1:]}
    taught = distill(teacher, student, (x, labels), verbose=0)
    assert len(taught.history.history["student_loss"]) == 1
