"""A function in a process of its own: its memory goes back as a whole."""

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
    """Run a function in a process of its own and return what it returns.

    All memory that it takes, on the host and on devices, goes back when it ends, which
    no `clear_session` does. What it prints appears as it is printed. A `History` comes
    back with its figures and without its model; a model comes back with its weights.

    With the function alone, as by `@km.memory.isolated`, it is a decorator: each call
    of the function then runs so, `isolated(train)()` too.

    Args:
        function: any function, of a script or a notebook too. It gets copies of its
            arguments and of the variables that it reads.
        *args: its arguments.
        time_limit: seconds that a call may take, the start of the process included;
            None for as long as it takes. The function does not get it.
        **kwargs: its arguments by name.

    Returns:
        What the function returns; the decorated function, where there are no arguments.

    Raises:
        ChildDiedError: if the process ended without an answer, such as by a signal of
            the kernel when memory ran out.
        TimeoutError: if it took longer than the limit, and was ended.
        ConfigError: if an argument or the result cannot go to another process.
        Exception: the exception of the function. If it cannot be pickled, a
            `ChildDiedError` with its traceback as `stderr`.

    Example:
        >>> import kerasmem as km
        >>> km.memory.isolated(max, 3, 7)
        7
    """
    if not callable(function):
        raise ConfigError(
            "There is nothing to run in a process of its own. Expected: a function. "
            f"Received: function={function!r}. Next: isolated(train, 0.1) in place of "
            "isolated(train(0.1))."
        )
    if args or kwargs:
        return _run(function, args, kwargs, time_limit)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _run(function, args, kwargs, time_limit)

    return call


def work(order: str, answer: str) -> None:
    """Run, in the child, the function in a file, and write what came of it.

    Args:
        order: path of the file.
        answer: path to write to.
    """
    # The parent wrote this file a moment ago, in a folder of its own.
    function, args, kwargs = cloudpickle.loads(Path(order).read_bytes())
    trace = ""
    try:
        value = function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        trace = traceback.format_exc()
        error.add_note("In a process of its own:\n" + trace)
        value = error
    try:
        content = _dumps(trace, value)
    except Exception as error:  # noqa: BLE001 - a reducer may raise anything
        # An exception alone is left out: its traceback is enough for the parent.
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
    """Pickles classes of the running script by value, a `History` without its model."""

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
