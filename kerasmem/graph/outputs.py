"""What a model's outputs are: probabilities, logits or plain values."""

import enum
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.graph.layers import own_graph

_PASSING = (
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Identity,
    keras.layers.Reshape,
)


class Form(enum.Enum):
    """What the numbers of one output are."""

    SOFTMAX = "class probabilities"
    SIGMOID = "independent probabilities"
    LINEAR = "unbounded values"
    UNKNOWN = "unknown"


class Task(enum.Enum):
    """What one output is trained for, as its loss tells."""

    CATEGORICAL = "one class of several"
    BINARY = "yes or no for every entry"
    REGRESSION = "values"
    UNKNOWN = "unknown"


_TASKS = {
    "crossentropy": Task.CATEGORICAL,
    "ce": Task.CATEGORICAL,
    "categoricalcrossentropy": Task.CATEGORICAL,
    "sparsecategoricalcrossentropy": Task.CATEGORICAL,
    "categoricalfocalcrossentropy": Task.CATEGORICAL,
    "kldivergence": Task.CATEGORICAL,
    "binarycrossentropy": Task.BINARY,
    "binaryfocalcrossentropy": Task.BINARY,
    "meansquarederror": Task.REGRESSION,
    "meanabsoluteerror": Task.REGRESSION,
    "meansquaredlogarithmicerror": Task.REGRESSION,
    "meanabsolutepercentageerror": Task.REGRESSION,
    "huber": Task.REGRESSION,
    "logcosh": Task.REGRESSION,
    "cosinesimilarity": Task.REGRESSION,
    "poisson": Task.REGRESSION,
}

_ENTRYWISE = _TASKS.keys() - {"crossentropy", "ce", "sparsecategoricalcrossentropy"}
_ENTRYWISE |= {"hinge", "squaredhinge", "categoricalhinge", "dice", "tversky"}


@dataclass(frozen=True)
class Output:
    """One output of a model."""

    form: Form
    task: Task


def describe_outputs(model: Any, loss: Any, values: Any) -> list[Output]:
    """Return what each output of `model` is, in flattened order.

    Where the graph does not tell the form (a subclassed model, an unusual last
    layer), the loss does: one that takes logits means logits.

    Args:
        model: a `keras.Model`.
        loss: the loss that it is compiled with, or a dict or list of them, or None.
        values: what the model returned for a batch: a tensor, or a dict or list.
    """
    losses = of_each(model, loss, values)
    tensors = getattr(model, "outputs", None) or [None] * len(losses)
    return [_describe(*pair) for pair in zip(tensors, losses, strict=True)]


def losses_of(model: Any) -> list[Any]:
    """Return the loss that each of `model.outputs` is trained by, None for none.

    Args:
        model: a compiled model that knows its outputs.
    """
    return of_each(model, model.loss, output_of(model))


def output_of(model: Any) -> Any:
    """Return the symbolic outputs of a model in their structure, None without any."""
    graph = own_graph(model)
    return getattr(model, "outputs", None) if graph is None else graph.output


def of_each(model: Any, given: Any, values: Any) -> list[Any]:
    """Return the loss, or the labels, of each output; None for none.

    Args:
        model: a `keras.Model`.
        given: one for all outputs, or a dict or list of them.
        values: what the model returns, in its structure.
    """
    count = len(keras.tree.flatten(values))
    if isinstance(given, dict):
        return [given.get(name) for name in _names(model, values, count)]
    if isinstance(given, (list, tuple)):
        return list(given) if len(given) == count else [*given[:1], None][:1] * count
    return [given] * count


def _names(model: Any, values: Any, count: int) -> list[str]:
    if isinstance(values, dict):
        return [str(path[-1]) for path, _ in keras.tree.flatten_with_path(values)]
    return list(getattr(model, "output_names", None) or [""] * count)


def _describe(tensor: Any, loss: Any) -> Output:
    task = task_of(loss)
    form = Form.UNKNOWN if tensor is None else form_in_graph(tensor)
    if form is Form.UNKNOWN:
        form = _form_by_loss(loss, task)
    return Output(form, task)


def form_in_graph(tensor: Any) -> Form:
    """Return what a symbolic output is by the layers that made it, else `UNKNOWN`."""
    operation, inputs, index = _producer(tensor)
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        return form_in_graph(operation.outputs[index])
    if isinstance(operation, keras.layers.TimeDistributed):
        operation = operation.layer
    if type(operation).__module__.partition(".")[0] not in ("keras", "kerasmem"):
        return Form.UNKNOWN  # its `call` may do more than its activation
    # `keras.ops.softmax` on a symbolic tensor becomes an operation of that name.
    function = getattr(operation, "activation", None) or type(operation)
    name = getattr(function, "__name__", "").lower()
    passes = isinstance(operation, keras.layers.Activation) and name == "linear"
    if inputs and (passes or isinstance(operation, _PASSING)):
        return form_in_graph(inputs[0])
    forms = {"softmax": Form.SOFTMAX, "sigmoid": Form.SIGMOID, "linear": Form.LINEAR}
    return forms.get(name, Form.UNKNOWN)


def _producer(tensor: Any) -> tuple[Any, list[Any], int]:
    """Return the operation that made a symbolic tensor, its inputs, and which output.

    Keras has no public way from a symbolic tensor back to its operation.
    """
    history = tensor._keras_history
    node = history.operation._inbound_nodes[history.node_index]
    return history.operation, list(node.input_tensors), history.tensor_index


def _form_by_loss(loss: Any, task: Task) -> Form:
    if task is Task.UNKNOWN:
        return Form.UNKNOWN
    if task is Task.REGRESSION or getattr(loss, "from_logits", False):
        return Form.LINEAR
    return Form.SOFTMAX if task is Task.CATEGORICAL else Form.SIGMOID


def task_of(loss: Any) -> Task:
    """Return the task of a loss given as text, function or object."""
    if isinstance(loss, str) and loss.lower() in _TASKS:
        return _TASKS[loss.lower()]
    return _TASKS.get(_key(keras.losses.get(loss)), Task.UNKNOWN)


def compares_entries(loss: Any) -> bool:
    """Return whether a loss is one of Keras's that takes labels as the outputs are.

    Labels of another shape it may broadcast, and mean something else.

    Args:
        loss: as `compile` takes it, for one output; None for none.
    """
    if loss is None:
        return False
    try:
        known = keras.losses.get(loss)
    except (ValueError, TypeError, KeyError):
        return False  # in a form that only `fit` knows
    of_keras = (getattr(known, "__module__", None) or "").startswith("keras.")
    return of_keras and _key(known) in _ENTRYWISE


def takes_loss(model: Any) -> bool:
    """Return whether a model is trained by the loss that it is compiled with."""
    kind = type(model)
    return (
        model.compiled
        and kind.compute_loss is keras.Model.compute_loss
        and kind.train_step is keras.Model.train_step
    )


def _key(loss: Any) -> str:
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return name.replace("_", "").lower()
