"""int8 and int4 files: always written, close to the model, with its codes."""

import importlib.util
from dataclasses import replace
from itertools import pairwise

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.quantize.owners import as_floats, quantized_variables
from kerasmem.errors import ConfigError, DataError, ModelError
from kerasmem.extras.litert import litert_writer
from kerasmem.extras.litert.arguments import arguments_of
from kerasmem.extras.litert.file_graph import (
    DYNAMIC,
    FLOAT,
    INT8,
    INT16,
    WEIGHT_ONLY,
    FileGraph,
    FileOperation,
    Seen,
)
from kerasmem.extras.litert.file_loss import (
    Judge,
    check_labels,
    classifiers,
    relative_error,
)
from kerasmem.extras.litert.interpreters import (
    LiteRT,
    decoded,
    encoded,
    litert_module,
)
from kerasmem.extras.litert.litert_writer import steps_of
from kerasmem.extras.litert.options import judged_samples
from kerasmem.extras.litert.precisions import (
    Candidates,
    PrecisionSearch,
    Tried,
    integer_share,
)
from tests.models import KINDS, OfTwoInputs, chain

L = keras.layers
pytestmark = pytest.mark.one_backend
random = np.random.default_rng(0)


def predicted(file, x):
    """Return what a LiteRT file with one input and output gives, as floats."""
    ((name, detail),) = file.inputs.items()
    (output,) = file({name: encoded(x, detail)})
    return decoded(output, file.outputs["output_0"])


def pictures(count=64):
    return random.normal(size=(count, 12, 12, 3)).astype("float32")


def network():
    """Convolutions, what shares codes, and a head that gives logits."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 3))
    x = L.RandomFlip()(inputs)
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(16, 3, padding="same")(x)))
    y = L.DepthwiseConv2D(3, padding="same", activation="relu6")(x)
    x = L.Concatenate()([L.Add()([x, y]), L.MaxPooling2D(3, 1, "same")(x)])
    x = L.Dropout(0.5)(L.Conv2D(32, 3, activation="relu")(x))
    return keras.Model(inputs, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


@pytest.mark.parametrize("scheme", ["int8-static", "int8-dynamic", "int4"])
@pytest.mark.parametrize("kind", ["conv2d", "attention", "recurrent", "tied_embedding"])
def test_a_file_is_written_for_every_model(kind, scheme, tmp_path):
    path, model, x = tmp_path / "m.tflite", KINDS[kind].make(), KINDS[kind].inputs()
    report = km.export(model, path, scheme=scheme, samples=x)
    assert report.loss <= report.tolerance
    assert report.scheme == scheme
    assert path.stat().st_size == report.file_bytes
    if kind != "recurrent":
        output = predicted(LiteRT(path.read_bytes()), x)
        assert relative_error(output, model.predict(x, verbose=0)) < 0.2


def test_layers_of_training_alone_are_not_in_the_file(tmp_path):
    path = tmp_path / "m.tflite"
    report = km.export(network(), path, scheme="int8-static", samples=pictures())
    assert report.integer_share == 1.0
    assert not report.operations
    assert {d["dtype"] for d in LiteRT(path.read_bytes()).inputs.values()} == {np.int8}


def branches(width=64):
    """A branch with tanh and a wider one, so that a scale changes before they join."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 3))
    x = L.Flatten()(inputs)
    x = L.Concatenate()([L.Dense(width)(x), L.Dense(width, activation="tanh")(x)])
    return keras.Model(inputs, L.Dense(10)(L.Dense(32, activation="relu")(x)))


def scaled():
    """Arithmetic on the inputs, whose values in between have no range."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 3))
    x = L.ReLU()(inputs) / 1.7 - 1.0
    x = L.Conv2D(16, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.Dense(10)(L.Flatten()(x)))


def large_branches():
    """A model whose file has its constants behind the model."""
    return branches(400)


@pytest.mark.parametrize("make", [network, branches, large_branches, scaled])
def test_a_static_model_in_keras_is_its_file(make, tmp_path):
    path, x = tmp_path / "m.tflite", pictures()
    static = km.compress(make(), km.Quantize("int8-static"), data=x)
    static.export(path, samples=x)
    file = LiteRT(path.read_bytes())
    scale, _ = file.outputs["output_0"]["quantization"]
    other = pictures(200)
    expected = static.model.predict(other, verbose=0)
    steps = np.abs(predicted(file, other) - expected) / scale
    assert np.mean(steps < 0.5) >= 0.99
    assert steps.max() < 1.5


def codes_in(path):
    """Return the int8 and int4 tensors of a LiteRT file, one output channel a row."""
    schema = litert_module("schema_py_generated")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    for tensor in model.subgraphs[0].tensors:
        data = model.buffers[tensor.buffer].data
        if data is None:
            continue
        stored = np.asarray(data, np.uint8)
        if tensor.type == schema.TensorType.INT4:
            low = (stored << 4).view(np.int8) >> 4
            pairs = np.stack([low, stored.view(np.int8) >> 4], axis=-1)
            yield pairs.ravel()[: np.prod(tensor.shape)].reshape(tensor.shape[0], -1)
        elif tensor.type == schema.TensorType.INT8:
            yield stored.view(np.int8).reshape(tensor.shape[0], -1)


@pytest.mark.parametrize(
    "choice",
    [
        km.Quantize("int8"),
        km.Quantize("int8", scales="mse"),
        km.Quantize("int4"),
        km.Quantize("int4", rounding="gptq"),
    ],
    ids=lambda choice: f"{choice.scheme}, {choice.rounding}, {choice.scales}",
)
def test_the_codes_of_the_model_are_in_the_file(choice, tmp_path):
    path = tmp_path / "m.tflite"
    x = random.normal(size=(64, 40)).astype("float32")
    model = chain((40,), L.Dense(64, activation="relu"), L.Dense(64))
    small = km.compress(model, choice, data=x)
    report = small.export(path, samples=x)
    assert report.scheme == {"int8": "int8-dynamic"}.get(choice.scheme, choice.scheme)
    found = list(codes_in(path))
    for variable in quantized_variables(small.model):
        floats = np.asarray(variable.plain()).T
        limit = 127 if choice.scheme == "int8" else 7
        codes = np.rint(floats / steps_of(floats, limit)[:, None])
        assert any(np.array_equal(codes, other) for other in found)


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_codes_in_groups_of_64_are_in_the_file(rounding, tmp_path):
    path = tmp_path / "m.tflite"
    x = random.normal(size=(64, 128)).astype("float32")
    model = chain((128,), L.Dense(64, activation="relu"))
    small = km.compress(model, km.Quantize("int4", rounding=rounding), data=x)
    report = small.export(path, samples=x, tolerance=0.2)
    assert (report.scheme, report.operations) == ("int4", ())
    (variable,) = quantized_variables(small.model)
    groups = np.asarray(variable.plain()).T.reshape(-1, 64)
    codes = np.rint(groups / steps_of(groups, 7)[:, None]).reshape(64, 128)
    assert any(np.array_equal(codes, other) for other in codes_in(path))


def test_operations_with_outliers_get_another_precision_and_a_reason(tmp_path):
    inputs = keras.Input((16,))
    x = L.Dense(32, activation="relu", name="first")(inputs)
    y = L.Rescaling(1e4)(L.Dense(32, name="large")(x))
    model = keras.Model(inputs, L.Dense(4)(x + L.Rescaling(1e-4)(y) * 0.0 + y * 1e-6))
    data = random.normal(size=(64, 16)).astype("float32")
    data[0] *= 300
    path = tmp_path / "m.tflite"
    report = km.export(model, path, scheme="int8-static", samples=data, tolerance=0.002)
    assert report.loss <= 0.002
    assert report.operations
    assert all(each.precision != INT8 and each.reason for each in report.operations)
    loose = km.export(model, path, scheme="int8-static", samples=data, tolerance=1.0)
    assert not loose.operations
    assert loose.loss > report.loss


def test_a_mask_of_the_lowest_float_is_no_infinity(tmp_path):
    inputs = keras.Input((16,))
    x = L.Dense(32)(inputs)
    lowest = float(np.finfo(np.float32).min)
    masked = keras.ops.softmax(keras.ops.where(x > 0, x, lowest))
    model = keras.Model(inputs, L.Dense(4)(masked))
    data = random.normal(size=(64, 16)).astype("float32")
    options = {"scheme": "int8-static", "samples": data, "tolerance": 0.001}
    report = km.export(model, tmp_path / "m.tflite", **options)
    assert report.loss <= 0.001


def test_labels_count_where_there_are_some(tmp_path):
    x = random.normal(size=(64, 8)).astype("float32")
    model = chain((8,), L.Dense(64, activation="relu"), L.Dense(3, "softmax"))
    labels = model.predict(x, verbose=0).argmax(-1)
    options = {"scheme": "int8-static", "samples": x}
    plain = km.export(model, tmp_path / "m.tflite", **options)
    assert (plain.measure, plain.samples) == ("changed decisions", 64)
    judged = km.export(
        model, tmp_path / "m.tflite", validation_data=(x[:40], labels[:40]), **options
    )
    assert (judged.measure, judged.samples) == ("accuracy loss", 40)
    one_hot = keras.utils.to_categorical(labels[:40], 3)
    again = km.export(
        model, tmp_path / "m.tflite", validation_data=(x[:40], one_hot), **options
    )
    assert again.loss == judged.loss


def unsure():
    """A classifier of near-equal probabilities, which int8 hardly tells apart."""
    keras.utils.set_random_seed(0)
    layers = [L.Dense(64, activation="relu") for _ in range(3)]
    return chain((20,), *layers, L.Dense(50, activation="softmax"))


def test_probabilities_closer_than_a_step_of_int8_leave_the_file_as_floats(tmp_path):
    x = random.normal(size=(128, 20)).astype("float32")
    options = {"scheme": "int8-static", "samples": x, "tolerance": 0.1}
    report = km.export(unsure(), tmp_path / "m.tflite", **options)
    assert report.loss <= 0.1
    assert report.integer_share == 1.0
    assert {each.kind for each in report.operations} <= {"SOFTMAX", "OUTPUT"}


def test_rounding_that_a_model_does_itself_is_no_loss_of_its_file(tmp_path):
    x = random.normal(size=(128, 20)).astype("float32")
    static = km.compress(unsure(), km.Quantize("int8-static"), data=x)
    report = static.export(tmp_path / "m.tflite", samples=x, tolerance=0.1)
    rounded = static.model.predict(x, verbose=0).argmax(-1)
    with as_floats(static.model):
        exact = keras.ops.convert_to_numpy(static.model(x)).argmax(-1)
    own_loss = np.mean(rounded != exact)
    assert own_loss > 0
    assert (report.tolerance, report.own_loss) == (0.1, own_loss)
    assert "at most 0.1, plus 0.0" in report.lines()[1]
    output = predicted(LiteRT((tmp_path / "m.tflite").read_bytes()), x)
    loss = np.mean(output.argmax(-1) != exact)
    assert report.loss == loss <= report.tolerance + report.own_loss
    static.export(tmp_path / "m.tflite", samples=x, scheme="int8-dynamic")


@pytest.mark.parametrize(
    ("scheme", "rounds"), [("int8", False), ("int8-dynamic", True)]
)
def test_only_a_model_that_rounds_its_activations_has_a_loss(scheme, rounds, tmp_path):
    x = random.normal(size=(64, 32)).astype("float32")
    model = chain((32,), L.Dense(64, activation="relu"), L.Dense(3))
    result = km.compress(model, km.Quantize(scheme))
    report = result.export(tmp_path / "m.tflite", samples=x)
    assert (report.scheme, report.measure) == ("int8-dynamic", "relative L2")
    assert (report.own_loss > 0) is rounds


def test_a_model_whose_own_rounding_loses_much_is_named(tmp_path):
    x = random.normal(size=(128, 20)).astype("float32")
    static = km.compress(unsure(), km.Quantize("int8-static"), data=x / 50)
    with pytest.warns(km.errors.KerasMemWarning, match="loses accuracy by rounding"):
        report = static.export(tmp_path / "m.tflite", samples=x)
    assert report.own_loss > report.tolerance


def test_a_static_model_without_a_graph_is_a_static_file(tmp_path):
    image, meta = random.normal(size=(2, 64, 32)).astype("float32")
    model = OfTwoInputs()
    model.compile("adam", "mse")
    x = model.joined(image, meta)
    model.fit(x, np.zeros((64, 3)), verbose=0)
    static = km.compress(model, km.Quantize("int8-static"), data=(x,))
    report = static.export(tmp_path / "m.tflite")
    assert report.scheme == "int8-static"
    assert not report.has_random_samples
    with pytest.raises(ConfigError, match="needs samples"):
        km.export(static.model, tmp_path / "m.tflite")


def test_random_samples_are_named_and_none_are_refused(tmp_path):
    path, model = tmp_path / "m.tflite", unsure()
    report = km.export(model, path, scheme="int8-dynamic")
    assert "on 128 random samples" in report.lines()[1]
    subclassed = OfTwoInputs("list")
    subclassed([np.zeros((1, 4)), np.zeros((1, 4))])
    with pytest.raises(DataError, match="The data is empty"):
        km.export(subclassed, path, samples=([np.zeros((0, 4)), np.zeros((0, 4))],))


def test_ranges_go_to_their_tensors_whatever_the_first_sample_is(tmp_path):
    x = random.normal(size=(64, 32)).astype("float32")
    x[0] = 0.0
    layers = [L.Dense(32, use_bias=False) for _ in range(3)]
    model = chain((32,), *layers)
    layers[1].kernel.assign(layers[1].kernel * 20)
    static = km.compress(model, km.Quantize("int8-static"), data=x)
    path = tmp_path / "m.tflite"
    report = static.export(path, samples=x)
    assert not report.operations
    output = predicted(LiteRT(path.read_bytes()), x)
    assert relative_error(output, static.model.predict(x, verbose=0)) < 0.01


def test_a_static_model_of_half_precision_has_an_int8_file(tmp_path):
    x = random.normal(size=(64, 32)).astype("float32")
    model = chain((32,), L.Dense(48, dtype="mixed_bfloat16"), L.Dense(40))
    static = km.compress(model, km.Quantize("int8-static"), data=x)
    report = static.export(tmp_path / "m.tflite", samples=x)
    assert report.integer_share == 1.0
    assert not report.operations


class Shuffled:
    """Batches of samples and labels in another order in each pass."""

    def __init__(self, x, y):
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self):
        self.passes += 1
        order = np.random.default_rng(self.passes).permutation(len(self.x))
        for start in range(0, len(order), 16):
            rows = order[start : start + 16]
            yield self.x[rows], self.y[rows]


def test_labels_belong_to_their_samples():
    x = random.normal(size=(64, 8)).astype("float32")
    model = chain((8,), L.Dense(3, "softmax"))
    y = model.predict(x, verbose=0).argmax(-1)
    arguments = arguments_of(model, None)
    judged = judged_samples(model, arguments, [x], Shuffled(x, y))
    (inputs,), (labels,) = judged.arrays, judged.labels
    assert len(labels) == 64
    np.testing.assert_array_equal(model.predict(inputs, verbose=0).argmax(-1), labels)


def test_labels_in_a_dict_go_by_the_names_of_outputs():
    inputs = keras.Input((8,))
    outputs = [L.Dense(3, "softmax", name=name)(inputs) for name in ("zz", "aa")]
    model = keras.Model(inputs, outputs)
    x = random.normal(size=(20, 8)).astype("float32")
    data = (x, {"aa": np.ones(20, int), "zz": np.zeros(20, int)})
    judged = judged_samples(model, arguments_of(model, None), [x], data)
    assert [int(array[0]) for array in judged.labels] == [0, 1]
    partly = (x, {"zz": np.zeros(20, int)})
    judged = judged_samples(model, arguments_of(model, None), [x], partly)
    assert judged.labels[1] is None
    with pytest.raises(DataError, match=r"shape \(20,\), or one-hot"):
        check_labels([np.zeros((20, 5)), None], [np.ones((20, 3))] * 2)


def test_only_classifiers_are_judged_by_decisions():
    sigmoids = random.uniform(size=(20, 5))
    logits = random.normal(size=(20, 5))
    one = random.uniform(size=(20, 1))
    assert classifiers("binary_crossentropy", [sigmoids, one]) == [False, True]
    sparse = keras.losses.sparse_categorical_crossentropy
    for loss in (sparse, [keras.losses.CategoricalCrossentropy()], sparse.__name__):
        assert classifiers(loss, [logits]) == [True]
    assert classifiers("mse", [logits, sigmoids, one]) == [False] * 3


def test_the_tolerance_is_kept_whatever_it_takes(tmp_path):
    inputs = keras.Input((6,), dtype="int32")
    x = L.GlobalAveragePooling1D()(L.Embedding(200, 32)(inputs))
    model = keras.Model(inputs, L.Dense(40)(x))
    words = random.integers(0, 200, (40, 6)).astype("int32")
    report = km.export(
        model,
        tmp_path / "m.tflite",
        scheme="int8-dynamic",
        samples=words,
        tolerance=1e-5,
    )
    assert report.loss <= 1e-5
    assert {each.precision for each in report.operations} == {FLOAT}


def test_a_model_of_a_fixed_batch_runs_in_it(tmp_path):
    inputs = keras.Input(batch_shape=(4, 5, 8))
    model = keras.Model(inputs, L.Dense(6)(L.LSTM(16, stateful=True)(inputs)))
    x = random.normal(size=(16, 5, 8)).astype("float32")
    before = [np.asarray(keras.ops.convert_to_numpy(v)) for v in model.variables]
    report = km.export(
        model, tmp_path / "m.tflite", batch_size=4, samples=x, tolerance=1.0
    )
    assert report.samples == 4
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)


def test_what_lacks_is_told_before_the_work(tmp_path, monkeypatch):
    path, model = tmp_path / "m.tflite", KINDS["dense"].make()
    with pytest.raises(ConfigError, match=r"samples=x \(--data\)"):
        km.export(model, path, scheme="int8-static")
    with pytest.raises(ConfigError, match="tolerance='0.1'"):
        km.export(model, path, tolerance="0.1")
    with pytest.raises(ConfigError, match=r"ends in \.tflite"):
        km.export(model, None)
    aware = km.quantization_aware(model, km.Quantize("int8"))
    with pytest.raises(ConfigError, match="quantization-aware training.*km.compress"):
        km.export(aware, path, scheme="int8-dynamic")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "litert_quantizer" else find(name, *rest),
    )
    with pytest.raises(ConfigError, match=r"pip install kerasmem\[litert\]"):
        km.export(model, path, scheme="int8-dynamic")
    assert not path.exists()


def graph(count):
    names = [f"t{n}" for n in range(count + 1)]
    operations = [FileOperation("ADD", (a,), (), (b,)) for a, b in pairwise(names)]
    return FileGraph(b"", operations, {}), names


def candidates(count, supports=lambda kind, precision: True):
    """Return operations in a row whose noise rises from the first to the last."""
    made, names = graph(count)
    seen = {}
    for number, name in enumerate(names):
        seen[name] = Seen((1, 4))
        seen[name].add(name, np.array([1.0, -1.0, 0.5, 10.0 * (number + 1)]) / 10)
    ranges = {name: (-1.0, number + 1.0) for number, name in enumerate(names)}
    return Candidates(made, seen, ranges, {}, supports)


@given(st.integers(1, 30), st.data())
def test_as_few_operations_as_are_enough_are_protected(count, data):
    needed = data.draw(st.integers(0, count))
    made = candidates(count)
    order = sorted(made.graph.operations, key=lambda o: -made.noise(o, INT8))

    def attempt(precisions):
        first = all(precisions[each] == INT16 for each in order[:needed])
        return Tried(b"", [], 0.0 if first else 1.0)

    judge = Judge([], [True], tolerance=0.5)
    found = PrecisionSearch(made, attempt, judge).run(INT8)
    assert found.file.loss == 0.0
    protected = [c for c in found.choices if c.precision != INT8]
    assert needed <= len(protected)
    assert all(choice.reason for choice in protected)
    # Four attempts halve what is open on a logarithmic scale.
    assert len(protected) <= 2 * needed + 1


def test_the_last_resort_is_float():
    made = candidates(5, lambda kind, precision: precision in (INT8, FLOAT))

    def attempt(precisions):
        return Tried(b"", [], float(INT8 in precisions.values()))

    found = PrecisionSearch(made, attempt, Judge([], [True], tolerance=0.5)).run(INT8)
    assert {choice.precision for choice in found.choices} == {FLOAT}


def test_a_file_that_cannot_be_made_is_one_that_loses_all(tmp_path, monkeypatch):
    path, model = tmp_path / "m.tflite", chain((40,), L.Dense(64), L.Dense(4))
    x = random.normal(size=(40, 40)).astype("float32")
    write = litert_writer.LitertWriter.write

    def refuse(self, precisions):
        if any(precisions[each] == INT8 for each in precisions):
            raise ModelError("no int8 today")
        return write(self, precisions)

    monkeypatch.setattr(litert_writer.LitertWriter, "write", refuse)
    report = km.export(model, path, scheme="int8-static", samples=x)
    assert {each.precision for each in report.operations} == {INT16, FLOAT}  # the ends
    monkeypatch.setattr(litert_writer.LitertWriter, "write", failing)
    with pytest.raises(ModelError, match="no file today"):
        km.export(model, path, scheme="int8-static", samples=x)


def failing(*_):
    raise ModelError("no file today")


def test_the_share_of_integers_is_that_of_multiplications():
    made = candidates(4)
    kept = [made.first(each, INT8) for each in made.graph.operations]
    sizes = zip(kept, (INT8, INT16, WEIGHT_ONLY, DYNAMIC), (1, 2, 4, 8), strict=True)
    choices = [replace(c, precision=p, multiplications=n) for c, p, n in sizes]
    assert integer_share(choices) == 11 / 15


@given(st.integers(0, 2**32 - 1), st.sampled_from([7, 127]))
def test_steps_are_found_from_the_values_alone(seed, limit):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-limit, limit + 1, (5, 24))
    codes[:, 0] = limit
    steps = (10.0 ** rng.uniform(-3, 3, 5)).astype("float32")
    found = steps_of(codes.astype("float32") * steps[:, None], limit)
    np.testing.assert_allclose(found, steps, rtol=1e-5)
    assert steps_of(rng.normal(size=(3, 24)).astype("float32"), 7) is None


def test_the_loss_is_that_of_its_measure():
    expected = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    output = np.array([[0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.5, 0.5]])
    assert classifiers(None, [expected]) == [True]
    assert Judge([expected], [True]).loss([output]) == 0.25
    labels = [np.array([0, 1, 0, 0])]
    assert Judge([expected], [True], labels).loss([output]) == 0.25
    # One of four decisions is another, though it is right: not all of that is luck.
    assert Judge([expected], [True], [np.array([0, 0, 0, 0])]).loss([output]) == 0.0625
    error = np.linalg.norm(output - expected) / np.linalg.norm(expected)
    assert Judge([expected], [False]).loss([output]) == pytest.approx(error)
    broken = output.copy()
    broken[0] = np.nan
    assert Judge([expected], [False]).loss([broken]) == np.inf
    infinite = expected.copy()
    infinite[1, 1] = -np.inf
    assert relative_error(infinite, infinite) == 0.0
    assert Judge([infinite, expected], [False] * 2).loss([infinite, broken]) == np.inf
    with pytest.raises(ModelError, match="differ in shape"):
        Judge([expected], [False]).loss([output[:2]])
