"""Errors and warnings of kerasmem.

KerasMemError
├── InputError (ValueError)           invalid argument, data, model or file
│   ├── ConfigError                   invalid argument of a technique or function
│   ├── DataError                     invalid samples, labels or .npz file
│   ├── ModelError                    unsupported model
│   └── ModelFileError                missing, damaged or unsupported model file
├── TargetError (RuntimeError)        missed target or `max_drop` of a compression
├── ChildDiedError (RuntimeError)     child process that ended without a result
├── OutputError (OSError)             result that could not be written
└── OutOfMemoryError (MemoryError)    exhausted memory, with kind and post-mortem

KerasMemWarning (UserWarning)
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

__all__ = [
    "ChildDiedError",
    "ConfigError",
    "DataError",
    "InputError",
    "KerasMemError",
    "KerasMemWarning",
    "ModelError",
    "ModelFileError",
    "OutOfMemoryError",
    "OutputError",
    "TargetError",
]

_LONGEST_WORD, _LONGEST_MESSAGE = 200, 4000


def shortened(message: str) -> str:
    """Returns a message with words cut to 200 and text to 4,000 characters.

    Example:
        >>> len(shortened(f"There is no file {'a' * 5000}."))
        217
    """
    message = re.sub(
        rf"\S{{{_LONGEST_WORD + 1},}}", lambda m: _cut(m[0], _LONGEST_WORD), message
    )
    return _cut(message, _LONGEST_MESSAGE)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 3]}...{text[-end:]}"


class KerasMemError(Exception):
    """Base class of all errors raised by kerasmem.

    Catch this class to handle all of them. Long messages are shortened.
    """

    # With this private attribute, Keras does not add terminal codes and all call
    # arguments to an error raised in a layer.
    _keras_call_info_injected = True

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class InputError(KerasMemError, ValueError):
    """Raised for an invalid argument, data set, model or file.

    The message contains the expected value, the received value and the next step.
    """


class ConfigError(InputError):
    """Raised for an invalid value of an argument.

    The message contains the name and the valid range of the argument.
    """


class DataError(InputError):
    """Raised if samples or labels are missing, unequal in length or of the wrong shape.

    Compare the shapes in the message with the inputs and outputs of the model.
    """


class ModelError(InputError):
    """Raised for a model that the function does not support.

    For example, the model has no weights yet, no graph, or nothing to compress. The
    message contains the reason and an alternative.
    """


class ModelFileError(InputError):
    """Raised if a model file is missing, damaged or does not contain a model.

    Check the path. Save a damaged file again.
    """


class TargetError(KerasMemError, RuntimeError):
    """Raised if a compression misses its `target` or exceeds `max_drop`.

    For `max_drop`, compress less, fine-tune longer or allow a larger drop. For
    `target`, the message contains the nearest result. Relax the target to this result,
    or increase the data or the time of the search.

    Args:
        message: Reachable result and next step.
        result: The `kerasmem.CompressionResult` nearest to the target. `None` for
            `max_drop`, without a result, or for an error from another process.
    """

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class ChildDiedError(KerasMemError, RuntimeError):
    """Raised if a child process ended without a result, for example if it was killed.

    After `"signal 9"`, the process needs less data in memory or more memory.

    Args:
        message: Description of the failure.
        how: Cause of the end, such as `"signal 9"` or `"an error"`.
        reason: Line of stderr with the error, or `""` if unknown.
        stderr: Last lines of stderr.
    """

    def __init__(
        self, message: str, *, how: str = "", reason: str = "", stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.how, self.reason = how, reason
        self.stderr = stderr


class OutputError(KerasMemError, OSError):
    """Raised if a result could not be written. Existing files remain unchanged.

    Check that the directory exists, is writable and has free space.
    """


class OutOfMemoryError(KerasMemError, MemoryError):
    """Raised if memory ran out and no automatic remedy was sufficient.

    See the post-mortem for the memory in use. Remedies by `kind`:

    - `"device"`: The device has too little memory for the step. Use a smaller batch, or
      `km.fit`, which splits batches.
    - `"one tensor"`: A single tensor is larger than the memory of the device.
    - `"fragmentation"`: The device has enough free memory, but no free block is large
      enough. Preallocate memory, or choose another allocator with
      `km.memory.configure`.
    - `"input pipeline"`: The host's memory ran out while a batch was created. A smaller
      model does not help. Reduce the buffers of the pipeline, or read the data with
      `km.memory.stream`.
    - `"host"`: The host's memory ran out elsewhere.
    - `"torn state"`: The model's state differs from before the step. Load the last
      checkpoint, in a new process if the message requires one.

    Args:
        message: Cause and next step.
        post_mortem: The `kerasmem.records.PostMortem`, or `None`, as for an error from
            another process.
        kind: One of the kinds above, or `None` without a post-mortem.
    """

    def __init__(
        self, message: str = "", post_mortem: Any = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.post_mortem = post_mortem
        self.kind = kind


class KerasMemWarning(UserWarning):
    """Issued if kerasmem skips or cannot read something and continues.

    To raise an error instead: `warnings.simplefilter("error", KerasMemWarning)`.
    """


IN_CALL = "Exception encountered when calling"
"""Start of the line in which Keras names the layer. The error follows."""


def text_of(error: Exception) -> str:
    r"""Returns the message of an error without terminal escape codes.

    Example:
        >>> text_of(KeyError("a name")), text_of(ValueError("\x1b[1mno\x1b[0m"))
        ('a name', 'no')
    """
    # `str` of a KeyError is a repr.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return re.sub(r"\x1b\[\d+m", "", text)


def without_config(text: str) -> str:
    """Returns a one-line Keras message up to the config of a layer.

    Example:
        >>> without_config("`Own` is unknown. Full object config: {'module': None}")
        '`Own` is unknown.'
    """
    ends = r" Example: | Full object config: | Received config=|: \{.{0,60}?'module'"
    return re.split(ends, text)[0]


def first_line(text: str) -> str:
    r"""Returns the first line of an error, after the location if there is one.

    Also appends a next line that starts with a lowercase letter.

    Example:
        >>> first_line("\n\nNo\nYes"), first_line(f"{IN_CALL} A.call().\n\nNo\nYes")
        ('No', 'Exception encountered when calling A.call(). No')
        >>> first_line("It was made\nof wood.\nand so on")
        'It was made of wood.'
        >>> first_line("No shape. Error encountered:\n\nIt has no call.")
        'No shape. Error encountered: It has no call.'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    count = 2 if lines and lines[0].startswith(IN_CALL) else 1
    for line, after in pairwise(lines[count - 1 :]):
        is_cut = after[0].islower() and not line.endswith((".", ":"))
        if not is_cut and not line.endswith("encountered:"):
            break
        count += 1
    return " ".join(lines[:count])


def as_received(value: object) -> str:
    """Formats a value for `Received:`. Long values are reduced to their type.

    Example:
        >>> as_received("a.keras"), as_received([0.5] * 99)
        ("'a.keras' of type str", '(...) of type list')
    """
    text, kind = repr(value), f"of type {type(value).__name__}"
    is_long = len(text) > _LONGEST_WORD or "\n" in text
    return f"(...) {kind}" if is_long else f"{text} {kind}"


def did_you_mean(
    name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6
) -> str:
    """Returns a sentence with the known names most similar to `name`, or `""`.

    The similarity of the `most` suggestions is at least `cutoff`, in [0, 1]. A name
    that differs only in case takes precedence, then one or two names that start with
    `name`.

    Example:
        >>> did_you_mean("flop", ["latency_ms", "flops"])
        " Did you mean 'flops'?"
    """
    names, text = list(known), str(name)
    near = [each for each in names if each.lower() == text.lower()]
    near = near or [each for each in names if each.startswith(text)]
    if not 0 < len(near) <= 2:
        near = get_close_matches(text, names, n=most, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
