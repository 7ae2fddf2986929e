"""What is written from file to file is what the way through memory writes."""

import io
import itertools
import json
import shutil
import threading
import zipfile

import h5py
import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.backends import at_rest
from kerasmem.backends.mapped import MappedArray
from kerasmem.compression import sources
from kerasmem.compression.cluster import apply as cluster
from kerasmem.errors import (
    ConfigError,
    KerasMemWarning,
    ModelError,
    ModelFileError,
    OutputError,
)
from kerasmem.files import threads
from kerasmem.graph.values import to_numpy
from kerasmem.stages import shown_by
from tests.compression.two_ways import both

L, Q = keras.layers, km.Quantize


def network(dtype="float32"):
    """Every layout of a kernel: a table, gates, heads, convolutions, a nested model."""
    keras.utils.set_random_seed(0)
    inner = keras.Sequential(
        [
            keras.Input((16, 21)),
            L.Conv1D(30, 3),
            L.DepthwiseConv1D(3),
            L.Conv1DTranspose(20, 4),
        ],
        name="inner",
    )
    x = inputs = keras.Input((16,), dtype="int32")
    x = L.Embedding(300, 24, dtype=dtype)(x)
    x = L.MultiHeadAttention(3, 8, dtype=dtype)(x, x)
    x = L.LSTM(33, return_sequences=True)(x)
    x = L.EinsumDense("abc,cd->abd", (None, 21), bias_axes="d", dtype=dtype)(x)
    x = L.GlobalAveragePooling1D()(inner(L.LayerNormalization()(x)))
    model = keras.Model(inputs, L.Dense(10, name="last")(x))
    model.compile("adam", "mse", metrics=["mae"])
    rng = np.random.default_rng(1)
    for weight in model.weights:
        drawn = np.round(rng.normal(size=weight.shape), 2)  # ties
        weight.assign(drawn.astype("float32"))
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("file_to_file")
    model = network()
    model.save(folder / "stored.keras")
    km.save_model(model, folder / "deflate.keras")
    km.save_model(model, folder / "entropy.keras", coding="entropy")
    network("bfloat16").save(folder / "bfloat16.keras")
    # As unzipped, and as in a preset: weights beside the config of their model.
    with zipfile.ZipFile(folder / "deflate.keras") as archive:
        archive.extractall(folder)
    (folder / "metadata.json").unlink()
    model.save_weights(folder / "w.weights.json", max_shard_size=3e-5)
    assert len([*folder.glob("w_*.weights.h5")]) > 2
    return folder


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Let the few weights of these tests stay in files, and be cut into pieces."""
    monkeypatch.setattr(at_rest, "_LEAST_KEPT", 16)
    monkeypatch.setattr(at_rest, "_REGION_BYTES", 1 << 14)
    monkeypatch.setattr(at_rest, "MOST_LENT_BYTES", 1 << 11)
    for module in (threads, cluster):
        monkeypatch.setattr(module, "PIECE", 64)


def in_int8(written, output):
    """Return the result of the way from file to file."""
    source = written / "stored.keras"
    return km.compress(source, Q("int8"), output=output, low_memory=True)


STEPS = {
    "int8": Q("int8"),
    "int8-dynamic": Q("int8-dynamic"),
    "int8 with zero points": Q("int8", symmetric=False),
    "int8 in groups": Q("int8", granularity="group", group_size=5),
    "int8 of a tensor": Q("int8", granularity="tensor"),
    "int4": Q("int4"),
    "int4 in groups": Q("int4", granularity="group", group_size=7, symmetric=False),
    "int3": Q("int3"),
    "int3 in groups": Q("int3", granularity="group", group_size=7, symmetric=False),
    "int4 of a tensor": Q("int4", granularity="tensor"),
    "float16": Q("float16"),
    "bfloat16": Q("bfloat16"),
    "prune": km.Prune(0.5),
    "prune of all": km.Prune(0.7, scope="global"),
    "prune of all by size": km.Prune(0.9, scope="global", criterion="magnitude"),
    "prune unevenly": km.Prune(0.6, scope="erdos_renyi", ratios=(("last", 0.3),)),
    "mixed": Q("mixed", budget=km.Budget("28KiB")),
    "mixed in groups": Q(
        "mixed", budget=km.Budget("24KiB"), granularity="group", group_size=5
    ),
    "mixed in groups with zero points": Q(
        *("mixed",),
        budget=km.Budget("24KiB"),
        granularity="group",
        group_size=9,
        symmetric=False,
    ),
    "cluster": km.Cluster(9),
    "cluster in channels": km.Cluster(3, granularity="channel", start="density"),
    "prune, cluster, then int4": [km.Prune(0.8), km.Cluster(16), Q("int4")],
    "prune, then int4": [km.Prune(0.8), Q("int4", exclude=("last",))],
}


@pytest.mark.parametrize("name", STEPS)
def test_the_file_and_the_account_are_those_of_the_way_through_memory(
    written, tmp_path, name
):
    expected, found = both(written / "stored.keras", STEPS[name], tmp_path)
    for ours, theirs in zip(found.changes, expected.changes, strict=True):
        assert (ours.weight, ours.detail, ours.changed, ours.after_bytes) == (
            theirs.weight,
            theirs.detail,
            theirs.changed,
            theirs.after_bytes,
        )
        assert ours.sqnr_db == pytest.approx(theirs.sqnr_db, abs=1e-3)
    for ours, theirs in (
        (found.report.before, expected.report.before),
        (found.report.after, expected.report.after),
    ):
        assert (ours.weight_bytes, ours.parameters, ours.nonzero) == (
            theirs.weight_bytes,
            theirs.parameters,
            theirs.nonzero,
        )
    assert found.report.after.file_bytes == (tmp_path / "b.keras").stat().st_size


@pytest.mark.parametrize("optimizer", ["adagrad", "ftrl", "sgd"])
def test_slots_are_those_of_a_new_optimizer(tmp_path, optimizer):
    layers = [keras.Input((9,)), keras.layers.Dense(30), keras.layers.Dense(4)]
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse")
    km.save_model(model, tmp_path / "model.keras")
    both(tmp_path / "model.keras", km.Prune(0.5), tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "deflate.keras",
        "entropy.keras",
        "bfloat16.keras",
        "model.weights.h5",
        "w.weights.json",
    ],
)
def test_the_file_that_is_read_may_be_of_any_coding_and_type(written, tmp_path, source):
    _, found = both(written / source, [km.Prune(0.4), Q("int8")], tmp_path)
    sizes = [path.stat().st_size for path in written.glob("w[._]*")]
    if source == "w.weights.json":
        assert found.report.before.file_bytes == sum(sizes)
    assert {path.name for path in tmp_path.iterdir()} == {"a.keras", "b.keras"}


@pytest.mark.parametrize("source", ["model.weights.h5", "w.weights.json"])
@pytest.mark.parametrize("low_memory", [True, False])
def test_weights_without_their_model_are_refused_by_name(
    written, tmp_path, source, low_memory
):
    for path in [*written.glob("w[._]*"), written / "model.weights.h5"]:
        shutil.copy(path, tmp_path)
    options = {"output": tmp_path / "a.keras", "low_memory": low_memory}
    with pytest.raises(
        ModelFileError, match=rf"{source}' contains only weights, and there is no"
    ):
        km.compress(tmp_path / source, Q("int8"), **options)
    (tmp_path / "config.json").write_bytes(b"[]")
    with pytest.raises(ModelFileError, match=rf"config of .*{source}' is damaged"):
        km.compress(tmp_path / source, Q("int8"), **options)
    shutil.copy(written / "config.json", tmp_path)
    if source == "w.weights.json":
        (tmp_path / "w_00001.weights.h5").unlink()
        with pytest.raises(
            ModelFileError, match=r"'w_00001.*', which is not in its folder"
        ):
            km.compress(tmp_path / source, Q("int8"), **options)
        (tmp_path / source).write_text('{"weight_map": {"a": "../x.weights.h5"}}')
        with pytest.raises(
            ModelFileError, match=r"x.weights.h5', which is not in its folder"
        ):
            km.compress(tmp_path / source, Q("int8"), **options)
        for name in ("", "x" * 5000, ".", "a\0b", "/etc/passwd"):
            shards = json.dumps({"weight_map": {"a": name}})
            (tmp_path / source).write_text(shards)
            with pytest.raises(ModelFileError, match="which is not in its folder"):
                km.compress(tmp_path / source, Q("int8"), **options)
        (tmp_path / source).write_text("[]")
        with pytest.raises(ModelFileError, match="has no valid weight_map"):
            km.compress(tmp_path / source, Q("int8"), **options)
    else:
        (tmp_path / source).write_bytes(b"no weights")
        with pytest.raises(ModelFileError, match=rf"{source}' is damaged"):
            km.compress(tmp_path / source, Q("int8"), **options)
    assert not (tmp_path / "a.keras").exists()


@pytest.mark.parametrize("coding", ["entropy", "stored"])
def test_the_file_that_is_written_may_be_of_any_coding(written, tmp_path, coding):
    both(written / "stored.keras", Q("int4"), tmp_path, coding=coding)


def test_an_int8_file_can_be_pruned_where_it_is_float(written, tmp_path):
    km.compress(written / "stored.keras", Q("int8", exclude=("last",))).save(
        tmp_path / "int8.keras"
    )
    both(tmp_path / "int8.keras", km.Prune(0.5, include=("last",)), tmp_path)


def test_the_model_is_opened_when_it_is_asked_for(written, tmp_path):
    found = in_int8(written, tmp_path / "small.keras")
    assert found._model is None
    assert repr(found).startswith("<CompressionResult of 'functional")
    assert found._model is None
    x = np.ones((2, 16), "int32")
    expected = km.load_model(tmp_path / "small.keras")(x)
    np.testing.assert_array_equal(to_numpy(found.model(x)), to_numpy(expected))
    assert found.model is found.model


def test_the_result_is_saved_as_a_copy_until_its_model_is_in_use(written, tmp_path):
    found = in_int8(written, tmp_path / "small.keras")
    found.save(tmp_path / "copy.keras")
    assert (tmp_path / "copy.keras").read_bytes() == (
        tmp_path / "small.keras"
    ).read_bytes()
    bias = found.model.get_layer("last").bias
    bias.assign(bias + 1)
    found.save(tmp_path / "copy.keras")
    reopened = km.load_model(tmp_path / "copy.keras").get_layer("last").bias
    np.testing.assert_array_equal(to_numpy(reopened), to_numpy(bias))


def test_output_alone_writes_the_file_of_a_small_model(written, tmp_path):
    found = km.compress(
        written / "stored.keras", Q("int8"), output=tmp_path / "a.keras"
    )
    assert found._model is not None
    assert km.load_model(tmp_path / "a.keras").count_params()


def test_a_model_that_is_large_against_memory_goes_by_file(
    written, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "_SHARE", 0.0)
    options = {"output": tmp_path / "a.keras"}
    found = km.compress(written / "deflate.keras", Q("int8"), **options)
    assert found._model is None
    whole = km.compress(
        written / "deflate.keras", Q("int8"), low_memory=False, **options
    )
    assert whole._model is not None
    with pytest.warns(KerasMemWarning, match="loaded into memory completely"):
        factorized = km.compress(
            written / "deflate.keras", km.Factorize(0.5), **options
        )
    assert factorized._model is not None


@pytest.mark.parametrize(
    ("steps", "options", "reason"),
    [
        (km.Factorize(0.5), {}, "the step 'factorize' needs all weights at once"),
        (
            km.Prune(0.5, pattern="2:4"),
            {},
            "ranks entries by .*, pattern='2:4'",
        ),
        (km.Prune(0.5, criterion="random"), {}, "ranks entries by criterion='random'"),
        (
            Q("int8", rounding="adaptive"),
            {},
            "at once: its rounding or its scales need samples",
        ),
        (Q("int8-static"), {}, "samples to calibrate activation ranges.*pass data=x"),
        (
            Q("int8"),
            {"callbacks": [keras.callbacks.Callback()]},
            "callbacks needs the model in memory",
        ),
        (
            Q("int8"),
            {"output": None},
            "because there is no file to write. Next: give output= or leave out low_",
        ),
        (None, {"target": {"file_bytes": 9}}, "data"),
    ],
)
def test_what_takes_the_whole_model_is_refused_by_name(
    written, tmp_path, steps, options, reason
):
    arguments = {"output": tmp_path / "a.keras", "low_memory": True, **options}
    with pytest.raises((ConfigError, km.errors.KerasMemError), match=reason):
        km.compress(written / "stored.keras", steps, **arguments)
    assert not (tmp_path / "a.keras").exists()


def test_a_model_in_memory_is_refused(tmp_path):
    with pytest.raises(
        ConfigError,
        match="memory already. Next: give the path of its file or leave out",
    ):
        km.compress(network(), Q("int8"), output=tmp_path / "a.keras", low_memory=True)


@pytest.mark.parametrize("output", ["a.h5", "a.weights.h5", "a.weights.json"])
def test_an_output_of_another_kind_is_refused_before_work(written, output):
    with pytest.raises(ConfigError, match=rf"must end in \.keras.*{output}'"):
        km.compress(written / "stored.keras", Q("int8"), output=output)


@keras.saving.register_keras_serializable("tests")
class OwnWay(L.Dense):
    """Saves its weights in a way of its own."""

    def save_own_variables(self, store):
        store["kernel"] = self.kernel * 2

    def load_own_variables(self, store):
        self.kernel.assign(store["kernel"] / 2)


def test_a_layer_may_save_in_a_way_of_its_own(tmp_path):
    model = keras.Sequential([keras.Input((9,)), OwnWay(4, use_bias=False, name="own")])
    model.save(tmp_path / "m.keras")
    both(tmp_path / "m.keras", km.Prune(0.5), tmp_path)
    x = np.ones((2, 9), "float32")
    sizes = [km.load_model(tmp_path / name)(x) for name in ("a.keras", "b.keras")]
    np.testing.assert_array_equal(*map(to_numpy, sizes))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_told_by_name(tmp_path, wrong):
    model = network()
    kernel = model.get_layer("last").kernel
    value = to_numpy(kernel).copy()
    value[-1, -1] = wrong
    kernel.assign(value)
    model.save(tmp_path / "m.keras")
    for steps in (Q("int8"), Q("int4", symmetric=False), Q("float16")):
        with pytest.raises(
            ModelError, match=r"NaN or infinity in 1 of .* entries of 'last/kernel'"
        ):
            km.compress(
                tmp_path / "m.keras",
                steps,
                output=tmp_path / "a.keras",
                low_memory=True,
            )
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]


def test_a_file_that_is_missing_or_damaged_is_told_in_one_line(written, tmp_path):
    options = {"output": tmp_path / "a.keras", "low_memory": True}
    with pytest.raises(ModelFileError, match="There is no file"):
        km.compress(tmp_path / "none.keras", Q("int8"), **options)
    damaged = bytearray((written / "stored.keras").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.keras").write_bytes(damaged)
    with pytest.raises(ModelFileError, match="checksum"):
        km.compress(tmp_path / "damaged.keras", Q("int8"), **options)
    assert not (tmp_path / "a.keras").exists()


def test_a_full_disk_is_one_line_and_the_old_file_stays(written, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MappedArray, "pieces", full)
    (tmp_path / "a.keras").write_bytes(b"old")
    with pytest.raises(OutputError, match="No space left on device"):
        km.compress(
            written / "stored.keras",
            Q("int8"),
            output=tmp_path / "a.keras",
            low_memory=True,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a.keras"]
    assert (tmp_path / "a.keras").read_bytes() == b"old"


def test_a_result_whose_file_is_another_by_now_says_so(written, tmp_path):
    source, output = written / "stored.keras", tmp_path / "out.keras"
    first, second = (
        km.compress(source, km.Prune(share), output=output, low_memory=True)
        for share in (0.9, 0.1)
    )
    for use in (lambda: first.save(tmp_path / "a.keras"), lambda: first.model):
        with pytest.raises(OutputError, match=r"has changed.*compress again"):
            use()
    second.save(tmp_path / "b.keras")
    output.unlink()
    for name in ("b", "c"):
        with pytest.raises(OutputError, match="The file of this result has changed"):
            second.save(tmp_path / f"{name}.keras")


def test_a_relative_output_is_found_from_another_folder(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = written / "stored.keras"
    result = km.compress(source, km.Prune(0.5), output="a.keras", low_memory=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    result.save("b.keras")
    assert result.model.count_params() == km.load_model(source).count_params()


def test_a_missing_folder_is_told_before_work(written, monkeypatch):
    monkeypatch.setattr("kerasmem.compression.sources.load_model", pytest.fail)
    with pytest.raises(ConfigError, match="There is no folder"):
        km.compress(written / "stored.keras", km.Prune(0.5), output="missing/a.keras")


def test_a_step_that_removes_nothing_is_counted(written, tmp_path):
    both_ways = both(written / "stored.keras", [km.Prune(1e-5), Q("int8")], tmp_path)
    one, other = (each.report.before.nonzero for each in both_ways)
    assert one == other


def edited(source, target, edit):
    """Write a deflated model's file with its weights edited."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member == "model.weights.h5":
                held = io.BytesIO(content)
                with h5py.File(held, "r+") as weights:
                    edit(weights)
                content = held.getvalue()
            new.writestr(member, content)
    return target


def add_loop(weights):
    weights["loop"] = h5py.SoftLink("/")
    weights["dangling"] = h5py.SoftLink("/nowhere")
    weights["elsewhere"] = h5py.ExternalLink("other.h5", "/")


def test_no_link_is_followed(written, tmp_path):
    path = edited(written / "deflate.keras", tmp_path / "linked.keras", add_loop)
    result = km.compress(
        path, km.Prune(0.5), output=tmp_path / "a.keras", low_memory=True
    )
    assert result.report.after.nonzero < result.report.before.nonzero


def test_an_array_that_is_declared_alone_takes_nothing(written, tmp_path):
    def add(weights):
        form = {"shape": (1, 1 << 31), "dtype": "u1", "chunks": (1, 1 << 20)}
        weights.create_dataset("more", **form)

    path = edited(written / "deflate.keras", tmp_path / "bomb.keras", add)
    with pytest.raises(ModelFileError):
        km.compress(path, km.Prune(0.5), output=tmp_path / "a.keras", low_memory=True)
    assert [each.name for each in tmp_path.iterdir()] == ["bomb.keras"]


class Interrupted:
    """Shows a stage until it is a user's turn to press Ctrl-C."""

    def __init__(self, after=None):
        self.after, self.seen = after, []

    def __call__(self, name, done, total):
        self.seen.append((name, done, total))
        if len(self.seen) == self.after:
            raise KeyboardInterrupt


STAGES = {
    *("opening the model", "copying the model"),
    *("comparing checksums", "unpacking the weights"),
    *("prune", "cluster", "quantize"),
    *("trying int3", "trying int4", "trying int8", "trying float16"),
    *("measuring the original model", "measuring the compressed model"),
    *("writing the file", "checking the file"),
}
ALL_STEPS = [km.Prune(0.8), km.Cluster(16), Q("mixed", budget=km.Budget("28KiB"))]


def compressed_and_shown(source, output, show):
    with shown_by(show):
        return km.compress(source, ALL_STEPS, output=output, low_memory=True)


def test_every_stage_tells_of_its_bytes(written, tmp_path):
    show = Interrupted()
    compressed_and_shown(written / "entropy.keras", tmp_path / "a.keras", show)
    assert {name for name, *_ in show.seen} == STAGES
    # The file is opened twice, as it was and unpacked: each stage by its bytes.
    by_stage = itertools.groupby(sorted(show.seen, key=_by_stage), _by_stage)
    found = {stage: [done for _, done, _ in told] for stage, told in by_stage}
    for (stage, total), done in found.items():
        # The old file's members are read twice: before it is chosen how, and after.
        assert done == sorted(done) or stage == "comparing checksums"
        # Ties are mostly found before the last entry.
        least = 0.7 if stage == "prune" else 1
        assert least * total <= done[-1] <= total, stage
    assert {stage for stage, total in found if total} == STAGES - {
        *("opening the model", "copying the model"),
        "measuring the original model",
        "measuring the compressed model",
    }


def _by_stage(told):
    return told[0], told[2]


@pytest.mark.parametrize("share", [0.02, 0.2, 0.4, 0.6, 0.8, 0.97])
def test_an_interrupt_leaves_nothing_behind(written, tmp_path, share):
    source, output = written / "entropy.keras", tmp_path / "a.keras"
    show = Interrupted()
    compressed_and_shown(source, output, show)
    output.write_bytes(b"old")
    threads = {thread.name for thread in threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        compressed_and_shown(source, output, Interrupted(int(share * len(show.seen))))
    assert [path.name for path in tmp_path.iterdir()] == ["a.keras"]
    assert output.read_bytes() == b"old"
    assert {thread.name for thread in threading.enumerate()} <= threads
