"""Errors are those of Python too, so that code that knows no kerasmem catches them."""

import pytest

from kerasmem import errors

KINDS = {
    "ChildDiedError": RuntimeError,
    "ConfigError": ValueError,
    "DataError": ValueError,
    "InputError": ValueError,
    "ModelError": ValueError,
    "ModelFileError": ValueError,
    "OutOfMemoryError": MemoryError,
    "OutputError": OSError,
    "TargetError": RuntimeError,
}


@pytest.mark.one_backend
def test_every_error_is_one_of_pythons():
    assert {*KINDS, "KerasMemError", "KerasMemWarning"} == set(errors.__all__)
    for name, kind in KINDS.items():
        error = getattr(errors, name)
        assert issubclass(error, kind)
        assert issubclass(error, errors.KerasMemError)
