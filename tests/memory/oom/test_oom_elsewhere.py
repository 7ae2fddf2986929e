"""What JAX and torch raise themselves on this machine; TensorFlow waits ten seconds."""

import keras
import pytest

from kerasmem.memory.oom import classify


def test_the_frameworks_own_error_of_a_petabyte_is_read():
    with pytest.raises(Exception, match=r"alloc|memory") as caught:
        keras.ops.multiply(keras.ops.ones((2**24, 2**24)), 2.0)
    cause = classify(caught.value)
    assert cause.requested_bytes == 2**50
    assert cause.kind == "device"
