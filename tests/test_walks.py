"""The walks that `docs/architecture.md` draws stay as short as they are."""

import pytest

from tests import walks

pytestmark = pytest.mark.one_backend

MOST = {"compress": 15, "estimate_memory": 13, "distill": 12}
"""Functions of ours that receive the model; each figure may only get smaller."""


@pytest.mark.parametrize("name", MOST)
def test_a_walk_is_short(name):
    stops = walks.WALKS[name]()
    assert stops[0].rpartition(".")[2] == name
    assert len(stops) <= MOST[name], stops


def test_a_compiled_step_is_left_alone_by_the_host():
    assert walks.monitored_step() == []
