"""What a post-mortem tells, against the estimate it is made of; it never raises."""

import pickle
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest

from kerasmem.errors import OutOfMemoryError
from kerasmem.graph.activation_policy import policy_of
from kerasmem.memory.compress_activations import compress_activations
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.oom import StepContext, classify, out_of_memory_error, post_mortem
from kerasmem.memory.oom.cause import DeviceFigures
from kerasmem.memory.oom.fitting import samples_per_batch
from kerasmem.memory.oom.savings import SAVINGS
from kerasmem.memory.plan import rematerialize
from kerasmem.optimizers import Adam8bit
from kerasmem.records import TORN, Cause, EstimatePart, PostMortem, Remedy
from kerasmem.records.post_mortem import CAUSES
from kerasmem.units import MIB
from tests.memory.plan.test_rematerialize import Subclassed
from tests.report.runs import countable_timeline

CAUSE = Cause(
    kind="device",
    error="ResourceExhaustedError",
    message="OOM when allocating tensor",
    requested_bytes=2 * MIB,
    device="CPU:0",
    limit_bytes=8 * MIB,
)


@pytest.fixture(autouse=True)
def nothing_else_in_use(monkeypatch):
    """Other tests' models may be in use in this process."""
    module = sys.modules[post_mortem.__module__]
    monkeypatch.setattr(module, "figures_of", DeviceFigures)


@pytest.fixture
def found(model):
    return post_mortem(
        model, CAUSE, StepContext(batch_size=1024, micro_batches=2, step=3)
    )


def test_what_is_alive_is_that_of_the_estimate_and_adds_up(found, model):
    expected = estimate_memory(model, 512, device="cpu")
    assert found.peak_bytes == expected.peak_bytes
    assert found.by_layer() == expected.by_layer()
    categories = expected.by_category()
    assert found.by_category() == categories
    assert sum(categories.values()) == found.peak_bytes
    assert sum(found.by_layer().values()) == found.peak_bytes
    assert not found.is_measured
    assert found.left_out == ()


def test_the_number_that_fits_fits_by_the_estimate(found, model):
    count, sums = found.fitting_micro_batches, 4 * model.count_params()
    assert count > 2
    size = -(-1024 // count)
    assert estimate_memory(model, size, device="cpu").high_bytes + sums < 8 * MIB
    assert found.fitting_bytes < 8 * MIB


def test_a_limit_of_the_users_counts_if_it_is_lower(model):
    tight = post_mortem(model, CAUSE, StepContext(batch_size=1024, limit_bytes=4 * MIB))
    loose = post_mortem(
        model, CAUSE, StepContext(batch_size=1024, limit_bytes=99 * MIB)
    )
    wide = post_mortem(model, CAUSE, StepContext(batch_size=1024))
    assert tight.fitting_micro_batches > wide.fitting_micro_batches
    assert loose.fitting_micro_batches == wide.fitting_micro_batches


@pytest.mark.one_backend
def test_a_timeline_is_measured_and_adds_up_too(model):
    context = StepContext(batch_size=32, timelines=[countable_timeline()])
    found = post_mortem(model, CAUSE, context)
    assert found.is_measured
    assert found.peak_bytes == 2092
    assert set(found.parts) == {
        EstimatePart("gradient", "dense", 1024),
        EstimatePart("activation", "relu", 512),
        EstimatePart("parameter", "dense", 300),
        EstimatePart("activation", "dense", 256),
    }


@pytest.mark.filterwarnings("ignore:Rematerialization saves little here")
def test_remedies_come_with_the_peak_of_a_step_that_has_them(model):
    cause = replace(CAUSE, limit_bytes=None)
    found = post_mortem(model, cause, StepContext(batch_size=512))
    expected = estimate_memory(model, 512, device="cpu")
    with_it = {
        "8-bit Adam": estimate_memory(model, 512, device="cpu", optimizer=Adam8bit()),
        "Adafactor": estimate_memory(model, 512, device="cpu", optimizer="adafactor"),
        "SGD": estimate_memory(model, 512, device="cpu", optimizer="sgd"),
        "int8 activations": estimate_memory(
            compress_activations(model), 512, device="cpu"
        ),
        "rematerialization": estimate_memory(
            rematerialize(model, batch_size=512), 512, device="cpu"
        ),
    }
    least = 0.01 * expected.peak_bytes
    worth = {
        name: estimate.peak_bytes
        for name, estimate in with_it.items()
        if expected.peak_bytes - estimate.peak_bytes > least
    }
    assert {"8-bit Adam", "SGD"} <= set(worth)
    assert {one.name: one.peak_bytes for one in found.remedies} == worth
    for one in found.remedies:
        assert one.saves_bytes == expected.peak_bytes - one.peak_bytes
        assert one.fits is None  # nobody told the limit
    assert "less (estimated)." in found.text()


class Averaged(Subclassed):
    """Computes with the batch size, which symbolic calls do not have."""

    def call(self, x):
        return super().call(x) / int(x.shape[0])


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", [Subclassed, Averaged])
def test_a_subclassed_model_is_told_to_rematerialize_if_its_calls_are_known(kind):
    model = kind()
    model(np.zeros((1, 6), "float32"))
    model.compile("sgd", "mse")
    context = StepContext(batch_size=4096, input_shape=(6,))
    found = post_mortem(model, CAUSE, context)
    assert found.left_out == ()
    names = ["rematerialization"] if kind is Subclassed else []
    assert [one.name for one in found.remedies] == names


def test_what_failed_corrects_what_remedies_are_estimated_at(found, model):
    # It was estimated below the limit, but it failed: it moved more by so much.
    plain = estimate_memory(model, 512, device="cpu")
    sgd = estimate_memory(model, 512, device="cpu", optimizer="sgd")
    stored, stored_by_sgd = (
        sum(p.nbytes for p in e.parts if p.category in ("parameter", "optimizer_state"))
        for e in (plain, sgd)
    )
    assert plain.peak_bytes < 8 * MIB
    factor = (8 * MIB - stored) / (plain.peak_bytes - stored)
    remedies = {one.name: one for one in found.remedies}
    moving = factor * (sgd.peak_bytes - stored_by_sgd)
    assert remedies["SGD"].peak_bytes == pytest.approx(stored_by_sgd + moving, abs=1)
    assert remedies["SGD"].fits == (moving <= 0.96 * (8 * MIB - stored_by_sgd))


def test_what_fits_comes_first_then_what_saves_most(model):
    every = {}
    for limit in (3, 5, 6, 8):
        context = StepContext(batch_size=512, limit_bytes=limit * MIB)
        remedies = post_mortem(model, CAUSE, context).remedies
        places = [(not one.fits, -one.saves_bytes) for one in remedies]
        assert places == sorted(places)
        every |= {(one.name, limit): one.fits for one in remedies}
        text = post_mortem(model, CAUSE, context).text()
        assert ("it should fit" in text) == any(one.fits for one in remedies)
        assert ("not enough by itself" in text) != all(one.fits for one in remedies)
    assert {True, False} == set(every.values())


def test_half_precision_is_for_a_device_that_gains_by_it(model, monkeypatch):
    module = sys.modules[post_mortem.__module__]
    on_cpu = post_mortem(model, CAUSE, StepContext(batch_size=2048))
    monkeypatch.setattr(module, "device_kind", lambda: "gpu")
    on_gpu = post_mortem(model, CAUSE, StepContext(batch_size=2048))
    names = [{one.name for one in found.remedies} for found in (on_cpu, on_gpu)]
    assert ["mixed precision" in some for some in names] == [False, True]


def test_a_model_that_is_only_estimated_as_treated_is_not(model):
    post_mortem(model, CAUSE, StepContext(batch_size=64))
    assert policy_of(model) is None


@pytest.mark.one_backend
def test_a_saving_that_cannot_be_estimated_is_left_out_and_said(model, monkeypatch):
    def fail(step):
        raise RecursionError("nobody thought of this")

    module = sys.modules[post_mortem.__module__]
    monkeypatch.setattr(module, "SAVINGS", SAVINGS | {"rematerialization": fail})
    found = post_mortem(model, CAUSE, StepContext(batch_size=512))
    assert found.left_out == (
        "savings by rematerialization: RecursionError: nobody thought of this",
    )
    assert {"8-bit Adam", "SGD"} <= {one.name for one in found.remedies}


@pytest.mark.one_backend
def test_no_estimate_is_begun_when_time_is_up(model, monkeypatch):
    module = sys.modules[post_mortem.__module__]
    monkeypatch.setattr(module, "_SECONDS", -1)
    found = post_mortem(model, CAUSE, StepContext(batch_size=512))
    assert found.remedies == ()
    assert len(found.left_out) == len(SAVINGS)
    assert found.fitting_micro_batches is not None


def test_nobody_is_told_to_take_what_is_there_already(model):
    model.compile("sgd", "mse")
    found = post_mortem(model, CAUSE, StepContext(batch_size=512))
    assert "8-bit Adam" not in {remedy.name for remedy in found.remedies}


@pytest.mark.one_backend
def test_a_pipeline_gets_its_own_advice_and_no_micro_batches(model):
    cause = replace(CAUSE, kind="input pipeline")
    found = post_mortem(model, cause, StepContext(batch_size=512))
    assert found.fitting_micro_batches is None
    assert found.parts == ()
    assert found.remedies[0].name == "a smaller shuffle buffer"
    assert "smaller micro-batches do not help" in found.text()
    assert "micro-batches of" not in found.text()


def test_fragmentation_is_cured_by_its_own_means_first(model, backend):
    cause = replace(CAUSE, kind="fragmentation", device="GPU:0")
    found = post_mortem(model, cause, StepContext(batch_size=512))
    word = "expandable_segments" if backend == "torch" else "preallocate=True"
    assert word in found.remedies[0].how


@pytest.mark.one_backend
def test_it_comes_back_from_json_whole(found):
    assert PostMortem.from_json(found.to_json()) == found


@pytest.mark.one_backend
def test_it_holds_nothing_but_plain_data(found):
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.one_backend
def test_the_text_has_the_figures(found):
    text = found.text(layers=1)
    assert "tower" in text
    assert "step 4, batch of 1,024 in 2 micro-batches of 512" in text
    assert "an allocation of 2.00 MiB failed; the limit is 8.00 MiB" in text
    assert "(estimated, analytic)" in text
    assert f"{found.fitting_micro_batches} micro-batches of" in text
    largest, *others = found.by_layer()
    assert f"\n  {largest}  " in text
    assert not any(f"\n  {layer}  " in text for layer in others if layer)


def test_the_model_stays_as_it_is(model):
    before = [weight.copy() for weight in model.get_weights()]
    built = model.optimizer.built
    post_mortem(model, CAUSE, StepContext(batch_size=64))
    after = model.get_weights()
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert model.optimizer.built == built


def unbuilt():
    return keras.Sequential([keras.layers.Dense(1)])


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("make", "batch_size", "words"),
    [
        (unbuilt, 8, "built model"),
        (lambda: None, 8, "AttributeError"),
        (None, 0, "a whole number from 1"),
    ],
    ids=["not built", "no model", "no batch"],
)
def test_what_cannot_be_found_out_is_left_out_and_said(make, batch_size, words, model):
    examined = make() if make else model
    found = post_mortem(examined, CAUSE, StepContext(batch_size=batch_size))
    assert found.peak_bytes is None
    assert found.fitting_micro_batches is None
    assert any(words in line for line in found.left_out)
    assert "undetermined:" in found.text()
    assert PostMortem.from_json(found.to_json()) == found


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", CAUSES)
def test_every_cause_has_an_error_that_carries_its_post_mortem(kind, found):
    one = replace(found, cause=replace(found.cause, kind=kind))
    error = out_of_memory_error(one)
    assert error.kind == kind
    assert error.post_mortem is one
    assert isinstance(error, MemoryError)
    assert "Received: batch_size=1024" in str(error)
    assert "Next: " in str(error)


@pytest.mark.one_backend
def test_a_torn_model_has_a_kind_of_its_own(found):
    error = out_of_memory_error(found, TORN)
    assert error.kind == "torn state"
    assert "Continue in a new process" in str(error)
    assert classify(error) is None


@pytest.mark.one_backend
def test_an_error_survives_a_pickle_with_its_post_mortem(found):
    error = pickle.loads(pickle.dumps(out_of_memory_error(found)))
    assert type(error) is OutOfMemoryError
    assert error.kind == found.cause.kind
    assert error.post_mortem == found


def test_samples_per_batch_are_those_of_fit():
    import numpy as np

    x = np.ones((50, 3), "float32")
    assert samples_per_batch(x, 8) == 8
    assert samples_per_batch(x, None) == 32
    assert samples_per_batch([(x[:5], x[:5])].__iter__(), None) == 0

    class Fives(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return x[:5], x[:5]

    assert samples_per_batch(Fives(), None) == 5


@pytest.mark.one_backend
def test_a_remedy_without_a_figure_has_none():
    assert Remedy(name="a", how="b").saves_bytes is None


def test_a_tensor_that_smaller_micro_batches_shrink_needs_no_smaller_layer(model):
    cause = replace(CAUSE, kind="one tensor")
    found = post_mortem(model, cause, StepContext(batch_size=2048))
    assert found.fitting_micro_batches is not None
    assert "a smaller layer" not in {remedy.name for remedy in found.remedies}
    tiny = replace(cause, limit_bytes=1000, layer="tower/wide")
    first, *_ = post_mortem(model, tiny, StepContext(batch_size=2048)).remedies
    assert first.name == "a smaller layer"
    assert "tower/wide" in first.how


def test_a_batch_of_unknown_size_is_not_split(model):
    found = post_mortem(model, CAUSE, StepContext(batch_size=0))
    assert "that fits is unknown: no batch size" in found.text()
