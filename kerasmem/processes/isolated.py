"""Runs a function in a child process, which frees all its memory at the end."""

import functools
import io
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import keras

from kerasmem.errors import ConfigError
from kerasmem.graph.clone import live_objects
from kerasmem.processes import answer_of_child, cannot_go, death, write_answer


def isolated(
    function: Callable[..., Any],
    *args: Any,
    time_limit: float | None = None,
    **kwargs: Any,
) -> Any:
    """Run a function in a child process and return its result.

    All memory of the function, on the host and on devices, is freed when the process
    ends. `clear_session` cannot guarantee this. Printed output appears immediately. A
    returned `History` contains its figures but not its model. A returned model contains
    its weights.

    Without arguments, `isolated` is a decorator: `@km.memory.isolated` or
    `isolated(train)()` runs each call of the function in a child process.

    Args:
        function: Callable, also from a script or a notebook. The child gets copies of
            its arguments and of the variables that it reads.
        *args: Positional arguments of the function.
        time_limit: Float or None. Maximum time of a call in seconds, including the
            start of the process. Not passed to the function. Defaults to no limit.
        **kwargs: Keyword arguments of the function.

    Returns:
        The result of the function, or the decorated function if there are no arguments.

    Raises:
        ChildDiedError: If the process ended without a result, such as when the kernel
            killed it for lack of memory.
        TimeoutError: If the time limit was exceeded and the process was killed.
        ConfigError: If an argument or the result cannot be pickled.
        Exception: The exception of the function. If it cannot be pickled, a
            `ChildDiedError` with the traceback as `stderr`.

    Example:
        >>> import kerasmem as km
        >>> km.memory.isolated(max, 3, 7)
        7
    """
    if not callable(function):
        raise ConfigError(
            "`isolated` needs a function to call. Expected: a function. "
            f"Received: function={function!r}. Next: isolated(train, 0.1) instead of "
            "isolated(train(0.1))."
        )
    if args or kwargs:
        return _run(function, args, kwargs, time_limit)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _run(function, args, kwargs, time_limit)

    return call


def work(order: str, answer: str) -> None:
    """Run the pickled function of a file in the child and write its result."""
    # Safe to unpickle: the parent wrote the file in its temporary folder.
    function, args, kwargs = cloudpickle.loads(Path(order).read_bytes())
    trace = ""
    try:
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        trace = traceback.format_exc()
        error.add_note("In a child process:\n" + trace)
        value = error
    try:
        content = _dumps(trace, value)
    except Exception as error:  # noqa: BLE001 - a reducer may raise anything
        # An exception that cannot be pickled is omitted, and the parent uses its
        # traceback.
        rest = () if trace else (cannot_go("result", value, error),)
        content = _dumps(trace or traceback.format_exc(), *rest)
    write_answer(Path(answer), content)


def _run(
    function: Callable[..., Any], args: Any, kwargs: Any, time_limit: float | None
) -> Any:
    name = f"The function {getattr(function, '__name__', repr(function))!r}"
    with tempfile.TemporaryDirectory(prefix="kerasmem-isolated-") as folder:
        order, answer = Path(folder, "order"), Path(folder, "answer")
        try:
            order.write_bytes(_dumps((function, args, kwargs)))
        except Exception as error:
            raise cannot_go("function or an argument", function, error) from error
        code = f"import sys; from {__name__} import work; work(*sys.argv[1:])"
        content = answer_of_child(
            ["-c", code, str(order), str(answer)],
            name,
            answer,
            environment={"KERAS_BACKEND": keras.backend.backend()},
            seconds=time_limit,
            is_shown=True,
        )
        stream = io.BytesIO(content)
        trace = cloudpickle.load(stream)
        try:
            value = cloudpickle.load(stream)
        except Exception as error:
            if trace:
                raise death(name, 1, trace) from error
            raise cannot_go("result", function, error) from error
    if trace:
        raise value
    return value


class _Pickler(cloudpickle.Pickler):
    """Pickles `History` without its model and models with their custom objects."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is keras.callbacks.History:
            return _history, (obj.history, obj.epoch, obj.params)
        if isinstance(obj, keras.Model):
            return _model, (live_objects(obj), *obj.__reduce__())
        return super().reducer_override(obj)


def _dumps(*values: Any) -> bytes:
    file = io.BytesIO()
    for value in values:
        _Pickler(file).dump(value)
    return file.getvalue()


def _model(objects: Any, load: Callable[..., Any], arguments: Any) -> keras.Model:
    with keras.saving.custom_object_scope(objects):
        return load(*arguments)


def _history(figures: Any, epoch: Any, params: Any) -> keras.callbacks.History:
    history = keras.callbacks.History()
    history.history, history.epoch, history.params = figures, epoch, params
    return history
