"""An ONNX file gives what its model gives, or there is no file.

The packages that make and run one are an extra that the suite does without: what they
give is tested where they are installed, and by `tests/benchmarks/bench_onnx.py`.
"""

import importlib.util
import os

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, ModelError
from kerasmem.extras.litert import interpreters, options
from kerasmem.extras.litert import verified as room
from kerasmem.extras.litert.convert import ONNX
from kerasmem.extras.litert.file_loss import relative_error
from tests.models import KINDS, chain

L = keras.layers
ONCE = ("conv2d", "recurrent", "subclassed")
IS_INSTALLED = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))


def network():
    return chain((32,), L.Dense(64, activation="relu"), L.Dense(4))


def samples():
    return np.random.default_rng(0).normal(size=(40, 32)).astype("float32")


@pytest.fixture
def pretended(monkeypatch):
    """A converter and a runtime that give what the model does, and `off` more."""

    class Pretended:
        def __init__(self):
            self.off, self.asked = 0.0, []

        def convert(self, model, arguments, kind):
            self.asked.append(kind)
            self.model = model
            return b"a file"

        def run(self, content):
            assert content == b"a file"
            return lambda arrays: [
                self.model.predict_on_batch(next(iter(arrays.values()))) + self.off
            ]

    found = Pretended()
    monkeypatch.setattr(options, "check_onnx", lambda: None)
    monkeypatch.setattr(room, "convert", found.convert)
    monkeypatch.setitem(room.RUNTIMES, ONNX, found.run)
    return found


@pytest.mark.parametrize("scheme", [None, "int4", "float16"])
def test_a_file_that_gives_what_its_model_does_is_there(scheme, pretended, tmp_path):
    model, path = network(), tmp_path / "m.onnx"
    if scheme:
        model = km.compress(model, km.Quantize(scheme)).model
    report = km.export(model, path, samples=samples())
    assert path.read_bytes() == b"a file"
    assert (report.scheme, report.file_bytes, report.samples) == ("float", 6, 4)
    assert report.difference <= report.tolerance == 1e-5
    assert pretended.asked[-1] == "onnx"


@pytest.mark.one_backend
def test_a_file_that_gives_something_else_is_not_written(pretended, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"before")
    pretended.off = 0.01
    with pytest.raises(ModelError, match="differs too much from the model"):
        km.export(network(), path, samples=samples())
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.one_backend
@pytest.mark.parametrize("missing", [("tf2onnx",), ("tf2onnx", "onnxruntime")])
def test_without_the_packages_the_extra_is_named(missing, tmp_path, monkeypatch):
    find = importlib.util.find_spec

    def pretend(name, *rest):
        if name in {"tf2onnx", "onnxruntime"}:
            return None if name in missing else "there"
        return find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", pretend)
    monkeypatch.setattr(room, "convert", None)  # nothing is converted before
    names = " or ".join(map(repr, missing))
    expected = rf"pip install kerasmem\[onnx\].*no module {names}\."
    with pytest.raises(ConfigError, match=expected):
        km.export(network(), tmp_path / "m.onnx")


@pytest.mark.one_backend
def test_int4_has_no_form_in_an_onnx_file(tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(ConfigError, match=r"int8 or float weights.*\.tflite"):
        km.export(network(), path, scheme="int4")
    assert not path.exists()


class Runtime:
    """What `onnxruntime` has, for a file of ten outputs and one."""

    class SessionOptions:
        pass

    class InferenceSession:
        def __init__(self, content, options, providers):
            if content == b"damaged":
                raise Exception("INVALID\nGRAPH")
            self.options = options

        def get_outputs(self):
            order = (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)
            return [type("Output", (), {"name": f"output_{i}"}) for i in order]

        def run(self, names, arrays):
            if not arrays:
                raise Exception("Required inputs\nare missing")
            return [int(name.removeprefix("output_")) for name in names]


@pytest.fixture
def runtime(monkeypatch):
    monkeypatch.setattr(interpreters, "check_onnx", lambda: None)
    monkeypatch.setattr(interpreters.importlib, "import_module", lambda name: Runtime)


@pytest.mark.one_backend
def test_outputs_come_in_the_order_of_their_numbers(runtime):
    assert interpreters.Onnx(b"fine")({"x": np.ones(1)}) == list(range(11))


@pytest.mark.one_backend
def test_what_onnxruntime_refuses_is_a_model_error_in_one_line(runtime):
    with pytest.raises(ModelError, match="cannot load the file: INVALID GRAPH"):
        interpreters.Onnx(b"damaged")
    text = "cannot run the file: Required inputs are missing"
    with pytest.raises(ModelError, match=text):
        interpreters.Onnx(b"fine")({})


if IS_INSTALLED:
    once = pytest.mark.one_backend  # elsewhere every file takes a process of its own

    @pytest.mark.parametrize(
        "kind",
        ["attention", *(pytest.param(kind, marks=once) for kind in ONCE)],
    )
    def test_the_file_equals_the_model_to_1e_5(kind, tmp_path):
        path = tmp_path / "m.onnx"
        model, x = KINDS[kind].make(), KINDS[kind].inputs()
        assert km.export(model, path, samples=x).difference <= 1e-5
        name = model.inputs[0].name if kind != "subclassed" else "input_0"
        other = KINDS[kind].inputs(seed=5)
        (output,) = interpreters.Onnx(path.read_bytes())({name: other})
        expected = keras.ops.convert_to_numpy(model(other))
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.one_backend
    @pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-static"])
    @pytest.mark.parametrize("kind", ["conv2d", "attention", "recurrent"])
    def test_an_int8_file_is_written_for_every_model(kind, scheme, tmp_path):
        path, model = tmp_path / "m.onnx", KINDS[kind].make()
        x = KINDS[kind].inputs()
        report = km.export(model, path, scheme=scheme, samples=x)
        assert report.loss <= report.tolerance
        (output,) = interpreters.Onnx(path.read_bytes())({model.inputs[0].name: x})
        assert relative_error(output, model.predict(x, verbose=0)) < 0.1

    @pytest.mark.one_backend
    def test_int8_weights_take_a_byte(tmp_path):
        model = chain((64,), L.Dense(128, activation="relu"), L.Dense(128))
        x = np.random.default_rng(0).normal(size=(40, 64)).astype("float32")
        for scheme in ("int8-dynamic", "int8-static"):
            report = km.export(model, tmp_path / "m.onnx", scheme=scheme, samples=x)
            assert report.file_bytes < 64 * 128 + 128 * 128 + 8000
            assert report.integer_share == 1.0

    def test_weights_in_fewer_bits_and_constants_are_in_the_file(tmp_path):
        known = L.Normalization(mean=np.arange(32.0), variance=np.ones(32))
        model = chain((32,), known, L.Dense(64, activation="gelu"), L.Dense(4))
        small = km.compress(model, km.Quantize("int8"))
        path, x = tmp_path / "m.onnx", samples()
        assert small.export(path, scheme="float", samples=x).difference <= 1e-5

    @pytest.mark.one_backend
    def test_operations_that_onnx_lacks_are_named(tmp_path):
        inputs = keras.Input((4, 4))
        model = keras.Model(inputs, keras.ops.slogdet(inputs)[1])
        with pytest.raises(ModelError, match="no operation for LogMatrixDeterminant"):
            km.export(model, tmp_path / "m.onnx")


@pytest.mark.skipif(not IS_INSTALLED, reason="needs kerasmem[onnx]")
def test_the_graph_is_not_copied_and_a_failing_optimizer_is_left_out(
    tmp_path, monkeypatch
):
    import copy

    import tf2onnx.graph
    import tf2onnx.optimizer

    copied, environment = [], dict(os.environ)

    class Counting:
        @staticmethod
        def deepcopy(value):
            copied.append(type(value))
            return copy.deepcopy(value)

    monkeypatch.setattr(tf2onnx.optimizer, "copy", Counting)
    path = tmp_path / "m.onnx"
    km.export(network(), path, samples=samples())
    assert tf2onnx.graph.Graph not in copied

    def fail(*_):
        raise ValueError

    monkeypatch.setattr(tf2onnx.optimizer.ReshapeOptimizer, "optimize", fail)
    report = km.export(network(), path, samples=samples())
    assert tf2onnx.graph.Graph in copied
    assert report.loss <= report.tolerance
    assert dict(os.environ) == environment
