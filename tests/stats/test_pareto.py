"""The Pareto front, against its definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.stats.pareto import front

pytestmark = pytest.mark.one_backend

costs = st.integers(0, 6)


def beats(one, other):
    return one != other and one[0] <= other[0] and one[1] <= other[1]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.tuples(costs, costs), max_size=12))
def test_on_the_front_is_what_no_other_point_beats(points):
    assert front(points) == [
        not any(beats(other, point) for other in points) for point in points
    ]
