"""Two traces of a real GPU, and models built as those that were traced."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import keras
import pytest

from kerasmem.backends.profile import (
    AllocatorTrace,
    Profile,
    Storage,
    device_of,
    memory_event,
)
from kerasmem.memory.timeline import timelines, watched
from tests.memory.estimate.test_measured import cnn, transformer
from tests.timelines import (
    assert_adds_up,
    made_in_window,
    requested_by_layer,
    share_known,
)

pytestmark = pytest.mark.one_backend

DATA = Path(__file__).parents[2] / "data"


def rows(name):
    with gzip.open(DATA / f"trace_{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module", params=[cnn, transformer], ids=["cnn", "transformer"])
def traced(request):
    """Return the model's variables and the timelines of its trace, two steps."""
    keras.utils.clear_session(free_memory=False)
    model = request.param()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    data, _ = watched(model)
    events = defaultdict(list)
    for row in rows(request.param.__name__):
        kind = "MemoryAllocation" if row["alloc"] else "MemoryDeallocation"
        event = memory_event(row["t"] // 1000, kind, row)
        events[row["allocator_name"]].append(event)
    profile = Profile(
        traces=[
            AllocatorTrace(allocator, device_of(allocator), "profiler", found, 256)
            for allocator, found in events.items()
        ],
        opening=[
            Storage(number, "GPU:0", None, variable.nbytes)
            for number, variable in enumerate(data.variables)
        ],
    )
    number = sum(map(len, events.values()))
    return data.variables, number, timelines(profile, data, "tensorflow", range(2, 4))


def test_live_blocks_are_the_allocators_figure_at_every_event(traced):
    _, number, found = traced
    assert sum(len(timeline.times_ns) for timeline in found) == number
    for timeline in found:
        assert_adds_up(timeline)


def test_almost_every_byte_has_a_layer_or_a_category(traced):
    gpu = traced[2][0]
    assert gpu.allocator == "GPU_0_bfc"
    assert share_known(made_in_window(gpu)) > 0.9999
    assert share_known(gpu.blocks) > 0.998
    assert share_known(gpu.live(gpu.peak_event)) > 0.99


def test_gradients_are_those_of_the_variables_in_both_steps(traced):
    variables, _, found = traced
    expected = defaultdict(int)
    for variable in variables:
        # An embedding's gradient comes as the rows that were looked up.
        if variable.is_trained and not variable.name.endswith("/embeddings"):
            expected[variable.layer] += 2 * variable.nbytes
    assert requested_by_layer(found[0].blocks, "gradient") == expected


def test_weights_and_slots_are_there_from_the_beginning(traced):
    variables, _, found = traced
    for category in ("parameter", "optimizer_state"):
        held = requested_by_layer(found[0].blocks, category)
        expected = defaultdict(int)
        for variable in variables:
            if variable.category == category:
                expected[variable.layer] += variable.nbytes
        assert held == expected


def test_the_workspace_of_a_convolution_is_shown_with_what_was_given_for_it():
    line = next(
        row
        for row in rows("cnn")
        if row["requested_bytes"] == 33701904 and row["alloc"]
    )
    event = memory_event(line["t"] // 1000, "MemoryAllocation", line)
    assert (event.given_bytes, event.is_scratch) == (67108864, True)
    assert event.operation == "functional_1/conv2d_1_2/Relu"
