"""TensorFlow's allocator really runs out; the training ends as if it had not."""

import pytest

from tests.memory.fit.oom_child import WHERE

pytestmark = pytest.mark.one_backend


@pytest.mark.parametrize("where", WHERE)
def test_twenty_updates_end_as_if_memory_had_never_run_out(seen, where):
    found = seen[where]
    (torn,) = found["torn"]
    assert torn >= (1 if where == "forward" else 10)
    assert any("repeated in 2 parts" in text for text in found["warnings"])
    assert found["weights_differ"] <= 1e-4
    assert found["losses_differ"] <= 1e-5
    assert found["iterations"] == 20
