"""The way of a model through kerasmem stays as short as it is."""

import tomllib
from pathlib import Path

import pytest

from tests import walks

pytestmark = pytest.mark.one_backend

FIGURES = tomllib.loads(Path(__file__).with_name("walks.toml").read_text())


def test_every_walk_has_figures():
    assert [*walks.WALKS] == [*FIGURES["b220913"]] == [*FIGURES["most"]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", walks.WALKS)
def test_a_walk_is_short(name):
    walk = walks.recorded(name)
    entry, _ = walks.WALKS[name]
    assert walk.stays[0].endswith(f".{entry.__name__}")
    most = FIGURES["most"][name]
    assert all(n <= most[key] for key, n in walk.figures.items()), walk.figures


def test_the_host_only_counts_the_batches_of_a_compiled_step():
    assert walks.monitored_step() == ["GradientMonitor.on_train_batch_end"]
