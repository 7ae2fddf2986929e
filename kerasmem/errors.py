"""Errors and warnings of kerasmem.

KerasMemError
├── InputError (ValueError)       what was handed in is wrong
│   ├── ConfigError               an argument of a technique or a call
│   ├── DataError                 samples, labels, an .npz file
│   ├── ModelError                a model that this cannot be done to
│   └── ModelFileError            a file that is missing, damaged or no model
├── ProfilerUnavailableError      no profile of the memory can be taken here
├── AccuracyDropError             the result does its job worse than allowed
└── OutputError (OSError)         a result that could not be written

KerasMemWarning (UserWarning)
"""


class KerasMemError(Exception):
    """Base of every error that kerasmem raises itself."""


class InputError(KerasMemError, ValueError):
    """What was handed in is wrong; the message says what to hand in instead."""


class ConfigError(InputError):
    """An argument has a value that cannot be used."""


class DataError(InputError):
    """Samples or labels are missing, unequal in length or of the wrong shape."""


class ModelError(InputError):
    """The model is of a kind that this cannot be done to."""


class ModelFileError(InputError):
    """A file is missing, damaged or holds no model."""


class ProfilerUnavailableError(KerasMemError):
    """No profile of the memory can be taken here; the message says what to do."""


class AccuracyDropError(KerasMemError):
    """The compressed model lost more of its metric than was allowed."""


class OutputError(KerasMemError, OSError):
    """A result could not be written; what was there before is untouched."""


class KerasMemWarning(UserWarning):
    """Something was left out or could not be read; the work goes on."""
