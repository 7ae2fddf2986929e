"""Memory really runs out, in processes whose allocator keeps to a limit."""

import os
import re
from pathlib import Path

import pytest

from kerasmem.memory.oom import noting_refusals
from kerasmem.records import MemoryEstimate, PostMortem
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend

LIMIT_MB = 48


@pytest.fixture(scope="module")
def found(seen):
    return PostMortem.from_json(seen["device"]["found"])


def bytes_in(text):
    (shape,) = set(re.findall(r"with shape\[([\d,]+)\] and type float", text))
    count = 4
    for length in shape.split(","):
        count *= int(length)
    return count


def test_the_request_is_that_of_the_message(seen, found):
    assert found.cause.requested_bytes == bytes_in(seen["device"]["text"])
    assert found.cause.operation in seen["device"]["text"]
    assert found.cause.layer.startswith("tower/dense")
    assert found.cause.device == "CPU:0"


def test_the_allocator_tells_what_it_had_in_that_moment(seen, found):
    cause = found.cause
    assert cause.limit_bytes == LIMIT_MB * MIB
    assert cause.in_use_bytes <= cause.limit_bytes
    assert cause.largest_free_bytes < cause.requested_bytes
    # Threads decide how the pool lies at that moment: it may be free in pieces.
    lacks = cause.in_use_bytes + cause.requested_bytes > cause.limit_bytes
    assert cause.kind == ("device" if lacks else "fragmentation")
    assert cause.in_use_after_bytes < cause.in_use_bytes
    assert seen["device"]["left"] is None  # nothing stays in the environment


def test_what_filled_it_is_the_estimate_to_the_byte(seen, found):
    estimate = MemoryEstimate.from_json(seen["device"]["estimate"])
    assert found.peak_bytes == estimate.peak_bytes
    assert sum(found.by_layer().values()) == estimate.peak_bytes
    assert found.peak_bytes > LIMIT_MB * MIB * 0.8


def test_as_many_micro_batches_as_it_names_run_within_the_limit(seen, found):
    peak = seen["device"]["ran"]
    assert found.fitting_micro_batches > 1
    assert peak <= LIMIT_MB * MIB
    # Not with many more than are needed either: they fill a good part of it.
    assert peak > 0.4 * LIMIT_MB * MIB


def test_what_is_said_to_fit_by_itself_runs_within_the_limit(seen, found):
    assert found.remedies
    assert None not in {one.fits for one in found.remedies}  # the limit is known
    fits = {one.name for one in found.remedies if one.fits}
    assert seen["device"]["remedies"] == dict.fromkeys(fits, True)
    assert found.left_out == ()


def test_a_pipeline_that_runs_out_is_told_from_a_model(seen):
    found = PostMortem.from_json(seen["pipeline"]["found"])
    assert found.cause.kind == "input pipeline"
    assert found.cause.requested_bytes == bytes_in(seen["pipeline"]["text"]) == 2**27
    assert found.fitting_micro_batches is None
    assert found.remedies[0].name == "a smaller shuffle buffer"


def test_free_memory_in_pieces_is_fragmentation(seen):
    cause = seen["pieces"]["cause"]
    assert cause["kind"] == "fragmentation"
    assert cause["requested_bytes"] == bytes_in(seen["pieces"]["text"]) == 8 * MIB
    assert cause["largest_free_bytes"] < 8 * MIB
    assert cause["limit_bytes"] - cause["in_use_bytes"] >= 8 * MIB


def test_a_users_own_memory_dump_is_left_alone(monkeypatch):
    monkeypatch.setenv("TF_BFC_MEMORY_DUMP", "/somewhere")
    with noting_refusals() as refusals:
        assert os.environ["TF_BFC_MEMORY_DUMP"] == "/somewhere"
        assert refusals.fullest() is None
    assert os.environ["TF_BFC_MEMORY_DUMP"] == "/somewhere"


def test_nothing_is_left_behind_after_an_error_and_half_a_file_is_none():
    with pytest.raises(ValueError, match="mine"), noting_refusals() as refusals:
        place = Path(os.environ["TF_BFC_MEMORY_DUMP"])
        place.with_name("dump_cpu.1").write_bytes(b"\x0a\xff\xff")
        assert refusals.fullest() is None
        raise ValueError("mine")
    assert "TF_BFC_MEMORY_DUMP" not in os.environ
    assert not place.parent.exists()
