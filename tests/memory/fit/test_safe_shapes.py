"""A batch is known to fit if two steps ran with one at least as large."""

import pytest

from kerasmem.memory.fit.plan import SafeShapes

pytestmark = pytest.mark.one_backend


def test_a_batch_is_safe_after_two_steps_and_smaller_ones_with_it():
    safe = SafeShapes()
    safe.note(1, (32, 128))
    assert not safe.covers(1, (32, 128))
    safe.note(1, (32, 128))
    assert safe.covers(1, (32, 128))
    assert safe.covers(1, (16, 100))
    assert not safe.covers(1, (8, 512))  # of the same size: attention needs more
    assert not safe.covers(2, (16, 128))


def test_a_larger_batch_stands_for_smaller_ones():
    safe = SafeShapes()
    for shape in [(8, 4), (8, 4), (32, 4), (32, 4)]:
        safe.note(1, shape)
    assert len(safe._safe) == 1
    assert safe.covers(1, (31, 4))
