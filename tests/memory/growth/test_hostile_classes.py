"""Classes whose metaclass raises do not end a scope."""

import numpy as np
import pytest

import kerasmem as km
from kerasmem.memory.census import census, kind_name

pytestmark = pytest.mark.one_backend


class Raising(type):
    """A metaclass as of a proxy: no attribute of its classes can be read."""

    def __getattribute__(cls, name):
        raise RuntimeError(name)


class WithoutModule(type):
    @property
    def __module__(cls):
        raise RuntimeError("no module")


@pytest.mark.parametrize("metaclass", [Raising, WithoutModule])
def test_a_scope_and_a_census_pass_over_a_class_whose_metaclass_raises(metaclass):
    class Odd(metaclass=metaclass):
        """Holds an array."""

    with km.memory.scope() as scope:
        kept = [object.__new__(Odd) for _ in range(3)]
        for one in kept:
            object.__setattr__(one, "kept", np.zeros(2**18))
    assert sum(one.array_bytes for one in scope.stayed) >= 3 * 2**21
    assert kind_name(Odd).endswith("Odd")
    assert census().number[kind_name(Odd)] == 3
