import random

import pytest

from kerasmem.errors import OutputError
from kerasmem.files.run_dir import (
    add_timelines,
    timeline_text,
    timelines_in,
)
from tests.timelines import synthetic

pytestmark = pytest.mark.one_backend


def lifetimes(number, chance):
    """Return `number` pairs of event numbers in which blocks begin and end."""
    alive, pairs, event = [], [], 0
    while len(pairs) < number or alive:
        if len(pairs) < number and (not alive or chance.random() < 0.5):
            alive.append(len(pairs))
            pairs.append([event, None])
        else:
            block = alive.pop(int(chance.random() * len(alive)))
            pairs[block][1] = event
        event += 1
    return [tuple(pair) for pair in pairs]


@pytest.fixture
def timeline():
    chance = random.Random(1)
    pairs = lifetimes(500, chance)
    sizes = [chance.randrange(1, 100) ** 2 for _ in pairs]
    return synthetic(pairs, sizes, opening_bytes=777)


def test_a_timeline_comes_back_as_it_was_written(tmp_path, timeline):
    path = add_timelines(tmp_path, [timeline, timeline])
    assert timelines_in(timeline_text(path)) == [timeline, timeline]


def test_windows_are_numbered_from_0_and_none_is_overwritten(tmp_path, timeline):
    folder = tmp_path / "run"
    names = [add_timelines(folder, [timeline]).name for _ in range(2)]
    names.append(add_timelines(folder, [timeline], process=1).name)
    assert names == [
        "timeline-0000.json.gz",
        "timeline-0001.json.gz",
        "timeline-0000-p1.json.gz",
    ]


@pytest.mark.parametrize("limit", ["MOST_TEXT_BYTES", "_MOST_BLOCKS"])
def test_what_cannot_fit_is_an_error_and_leaves_no_file(
    tmp_path, timeline, monkeypatch, limit
):
    monkeypatch.setattr(f"kerasmem.files.run_dir.{limit}", 100)
    with pytest.raises(OutputError, match="too long: 501 blocks .* 100 .*Next: record"):
        add_timelines(tmp_path, [timeline])
    assert list(tmp_path.iterdir()) == []
