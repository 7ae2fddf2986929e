"""The loss of a model: read from text, and compared with what the model ends in."""

import ast
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.errors import ConfigError, KerasMemWarning, did_you_mean
from kerasmem.graph.outputs import (
    Form,
    Task,
    form_in_graph,
    losses_of,
    takes_loss,
    task_of,
)

_LONGEST = 500
_WORDS = {
    Form.LINEAR: "unbounded values, by no softmax or sigmoid",
    Form.SOFTMAX: "a softmax",
    Form.SIGMOID: "a sigmoid",
}


def as_loss(loss: Any) -> Any:
    """Return a loss for `compile`; text with arguments becomes an object of Keras.

    Args:
        loss: what `compile` takes, where a name may have literal keyword arguments; in
            a dict or list of losses too.

    Raises:
        ConfigError: if text with arguments is no loss of `keras.losses`.

    Example:
        >>> as_loss("sparse_categorical_crossentropy(from_logits=True)").from_logits
        True
        >>> as_loss("mse")
        'mse'
    """
    if isinstance(loss, dict):
        return {name: as_loss(one) for name, one in loss.items()}
    if isinstance(loss, (list, tuple)):
        return type(loss)(map(as_loss, loss))
    return _parsed(loss) if isinstance(loss, str) and "(" in loss else loss


def _parsed(text: str) -> Any:
    try:
        name, arguments = _name_and_arguments(text)
        if name not in (classes := _classes()):
            raise ValueError(
                f"keras.losses has no {name!r}.{did_you_mean(name, classes)}"
            )
        return classes[name](**arguments)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            "A loss with arguments is a name of keras.losses with literal keyword "
            "arguments, such as sparse_categorical_crossentropy(from_logits=True). "
            f"Received: {text[:_LONGEST]!r}, {' '.join(str(error).split())[:200]}"
        ) from error


def _name_and_arguments(text: str) -> tuple[str, dict[str, Any]]:
    if len(text) > _LONGEST:
        raise ValueError(f"of {len(text)} characters")
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("which is no name with arguments")
    keywords = {each.arg: each.value for each in call.keywords}
    if call.args or None in keywords:
        raise ValueError("whose arguments have no names")
    return call.func.id, {
        str(name): ast.literal_eval(value) for name, value in keywords.items()
    }


def _classes() -> dict[str, Any]:
    """Return the losses of Keras by the names of class, function and abbreviation."""
    public = vars(keras.losses).items()
    by_name = {
        name.lower(): each
        for name, each in public
        if inspect.isclass(each) and each is not keras.losses.Loss
    }
    found = {each.__name__: each for each in by_name.values()}
    for name in [name for name, each in public if inspect.isfunction(each)]:
        if (key := name.replace("_", "")) in by_name:
            found[name] = by_name[key]
    for short in ("mse", "mae", "mape", "msle", "kld"):
        found[short] = found[keras.losses.get(short).__name__]
    return found


def warn_if_unfit(model: Any) -> None:
    """Warn if the loss that a model is compiled with is not for what it ends in.

    Looked at are crossentropies of Keras's own and last layers of Keras's own; of a
    model without a graph, or with a `compute_loss` or `train_step` of its own, nothing
    is said.

    Args:
        model: a compiled model.
    """
    if not takes_loss(model) or not getattr(model, "outputs", None):
        return
    try:
        texts = list(_misfits(model))
    except (ValueError, TypeError, KeyError):
        return  # losses in a form that only `fit` knows: of those nothing is said
    for text in texts:
        warnings.warn(text, KerasMemWarning, stacklevel=3)


def _misfits(model: Any) -> Iterator[str]:
    for tensor, loss in zip(model.outputs, losses_of(model), strict=True):
        known = None if loss is None else keras.losses.get(loss)
        of_keras = (getattr(known, "__module__", None) or "").startswith("keras.")
        name = getattr(known, "__name__", None) or type(known).__name__
        if not of_keras or not name.lower().endswith("crossentropy"):
            continue
        task = task_of(loss)
        remedy = _remedy(
            form_in_graph(tensor),
            task,
            from_logits=bool(getattr(known, "from_logits", False)),
            recovers=current().recovers_logits and tensor.dtype == "float32",
        )
        if remedy:
            form = _WORDS[form_in_graph(tensor)]
            yield (
                f"The output {tensor.name!r} of the model {model.name!r} ends in "
                f"{form}, and the loss {name} {remedy}"
            )


def _remedy(form: Form, task: Task, *, from_logits: bool, recovers: bool) -> str | None:
    """Return what a loss takes and what to do, None if that is what it gets."""
    if task is Task.UNKNOWN:
        return None
    if form is Form.LINEAR and not from_logits:
        end = "a softmax" if task is Task.CATEGORICAL else "a sigmoid"
        return (
            "takes probabilities: what is trained and measured by it is wrong. Next: "
            "give it from_logits=True (--loss 'NAME(from_logits=True)' on the command "
            f"line), or end the model in {end}."
        )
    if form is Form.SIGMOID and task is Task.CATEGORICAL:
        return (
            "takes the probabilities of classes that exclude each other. Next: end the "
            "model in a softmax, or take binary_crossentropy."
        )
    if form in (Form.SOFTMAX, Form.SIGMOID) and from_logits and not recovers:
        return (
            "takes logits: it flattens what is flat already. Next: give it "
            "from_logits=False, or let the model end without that."
        )
    return None
