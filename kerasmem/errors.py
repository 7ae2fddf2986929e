"""Errors and warnings of kerasmem.

KerasMemError
├── InputError (ValueError)           an argument, data, a model or a file is wrong
│   ├── ConfigError                   an argument of a technique or a call
│   ├── DataError                     samples, labels, an .npz file
│   ├── ModelError                    a model that the call does not support
│   └── ModelFileError                a file that is missing, damaged or no model
├── TargetError (RuntimeError)        a compression misses its target or `max_drop`
├── ChildDiedError (RuntimeError)     a child process ended without an answer
├── OutputError (OSError)             a result that could not be written
└── OutOfMemoryError (MemoryError)    memory ran out; has the kind and the post-mortem

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
    """Return a message, what is too long to read in it cut out of the middle.

    Args:
        message: any text; a word of it keeps 200 characters, such as a path, and all of
            it 4,000.

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
    """The base of every error that kerasmem raises itself.

    Catch it to catch them all. A long message is `shortened`.
    """

    # Read by Keras, private: an error that leaves a layer's call with it stays as it
    # is. Others become a page with terminal codes and all arguments of the call.
    _keras_call_info_injected = True

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class InputError(KerasMemError, ValueError):
    """An argument, a data set, a model or a file is wrong.

    The message says what was expected, what was received and what to hand in instead.
    """


class ConfigError(InputError):
    """An argument has a value that cannot be used.

    The message names the argument and its range: correct the value.
    """


class DataError(InputError):
    """Samples or labels are missing, unequal in length or of the wrong shape.

    Compare the shapes in the message with the inputs and outputs of the model.
    """


class ModelError(InputError):
    """The model is of a kind that the call does not support.

    It has no weights yet, no graph, or nothing to compress, for example. The message
    says which, and what to build or to choose instead.
    """


class ModelFileError(InputError):
    """A model file is missing, damaged or holds no model.

    Check the path; a file that is damaged has to be saved again.
    """


class TargetError(KerasMemError, RuntimeError):
    """A compression misses its `target`, or loses more of its metric than `max_drop`.

    For `max_drop`, compress less, fine-tune longer, or allow a larger drop. For a
    target, the message contains the nearest result: relax the target to that, or give
    the search more data or time.

    Args:
        message: what is reachable, and what to do next.
        result: the `kerasmem.CompressionResult` nearest to the target; None if there is
            none, as for an error of `max_drop` or from another process.
    """

    def __init__(self, message: str = "", result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class ChildDiedError(KerasMemError, RuntimeError):
    """A child process ended without an answer, as when the kernel killed it.

    The message says how it ended. After `"signal 9"` give it less to hold in memory.

    Args:
        message: what became of it.
        how: by what it ended, such as `"signal 9"` or `"an error"`.
        reason: the line of its stderr that names the error, empty if unknown.
        stderr: the last lines that it wrote there.
    """

    def __init__(
        self, message: str, *, how: str = "", reason: str = "", stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.how, self.reason = how, reason
        self.stderr = stderr


class OutputError(KerasMemError, OSError):
    """A result could not be written; what was there before is untouched.

    Check that the folder is there, is writable and has room.
    """


class OutOfMemoryError(KerasMemError, MemoryError):
    """Memory ran out, and nothing that was tried made it suffice.

    Read the post-mortem for what filled the memory, and make that smaller. By `kind`:

    - `"device"`: The device has too little memory for the step. Use a smaller batch, or
      `km.fit`, which splits batches.
    - `"one tensor"`: A single tensor is larger than the memory of the device.
    - `"fragmentation"`: The device has enough free memory, but not in one piece.
      Preallocate memory, or choose another allocator by `km.memory.configure`.
    - `"input pipeline"`: The host's memory ran out while a batch was made. A smaller
      model does not help: shrink the buffers of the pipeline, or read the data with
      `km.memory.stream`.
    - `"host"`: The host's memory ran out in any other way.
    - `"torn state"`: The model is no longer as it was before the step. Load the last
      checkpoint, in a new process if the message says so.

    Args:
        message: what happened and what to do next.
        post_mortem: the `kerasmem.records.PostMortem`; None where there is none, as in
            an error that came out of another process.
        kind: one of those above; None if there is no post-mortem.
    """

    def __init__(
        self, message: str = "", post_mortem: Any = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.post_mortem = post_mortem
        self.kind = kind


class KerasMemWarning(UserWarning):
    """Something was left out or could not be read; the work goes on.

    Turn it into an error with `warnings.simplefilter("error", KerasMemWarning)`.
    """


IN_CALL = "Exception encountered when calling"
"""With this Keras begins a line that says where, before the one that says what."""


def text_of(error: Exception) -> str:
    r"""Return what an error says, without codes of the terminal.

    Example:
        >>> text_of(KeyError("a name")), text_of(ValueError("\x1b[1mno\x1b[0m"))
        ('a name', 'no')
    """
    # The text of a KeyError is a repr.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return re.sub(r"\x1b\[\d+m", "", text)


def without_config(text: str) -> str:
    """Returns a message of Keras, in one line, up to the config of a layer in it.

    Example:
        >>> without_config("`Own` is unknown. Full object config: {'module': None}")
        '`Own` is unknown.'
    """
    ends = r" Example: | Full object config: | Received config=|: \{.{0,60}?'module'"
    return re.split(ends, text)[0]


def first_line(text: str) -> str:
    r"""Return the first line that says what is wrong, after where if that is said.

    A sentence that goes on with a small letter in the next line is joined.

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
    """Return a value for `Received:`; of what has a long text its type alone.

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
    """Return a sentence with the names that are most like a wrong one, or nothing.

    Args:
        name: the wrong name.
        known: the right ones.
        most: how many of them to tell.
        cutoff: how like it they are, in [0, 1].

    Example:
        >>> did_you_mean("flop", ["latency_ms", "flops"])
        " Did you mean 'flops'?"
    """
    near = get_close_matches(str(name), list(known), n=most, cutoff=cutoff)
    return f" Did you mean {', '.join(map(repr, near))}?" if near else ""
