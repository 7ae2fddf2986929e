"""Determines whether outputs are probabilities or logits, and checks the loss."""

import ast
import enum
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from kerasmem.backends import current
from kerasmem.errors import ConfigError, KerasMemWarning, did_you_mean
from kerasmem.graph.layers import node_of, own_graph
from kerasmem.types import Model, Tensor

_PASSING = (
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Identity,
    keras.layers.Reshape,
)


class OutputForm(enum.Enum):
    """Kind of values of one output."""

    SOFTMAX = "class probabilities"
    SIGMOID = "independent probabilities"
    LINEAR = "unbounded values"
    UNKNOWN = "unknown"


class OutputTask(enum.Enum):
    """Training task of one output, inferred from its loss."""

    CATEGORICAL = "one class of several"
    BINARY = "yes or no for every entry"
    REGRESSION = "values"
    UNKNOWN = "unknown"


_TASKS = {
    "crossentropy": OutputTask.CATEGORICAL,
    "ce": OutputTask.CATEGORICAL,
    "categoricalcrossentropy": OutputTask.CATEGORICAL,
    "sparsecategoricalcrossentropy": OutputTask.CATEGORICAL,
    "categoricalfocalcrossentropy": OutputTask.CATEGORICAL,
    "kldivergence": OutputTask.CATEGORICAL,
    "binarycrossentropy": OutputTask.BINARY,
    "binaryfocalcrossentropy": OutputTask.BINARY,
    "meansquarederror": OutputTask.REGRESSION,
    "meanabsoluteerror": OutputTask.REGRESSION,
    "meansquaredlogarithmicerror": OutputTask.REGRESSION,
    "meanabsolutepercentageerror": OutputTask.REGRESSION,
    "huber": OutputTask.REGRESSION,
    "logcosh": OutputTask.REGRESSION,
    "cosinesimilarity": OutputTask.REGRESSION,
    "poisson": OutputTask.REGRESSION,
}

_ENTRYWISE = _TASKS.keys() - {"crossentropy", "ce", "sparsecategoricalcrossentropy"}
_ENTRYWISE |= {"hinge", "squaredhinge", "categoricalhinge", "dice", "tversky"}


@dataclass(frozen=True)
class ModelOutput:
    """One output of a model."""

    form: OutputForm
    task: OutputTask


def describe_outputs(model: Model, loss: Any, values: Any) -> list[ModelOutput]:
    """Returns the form and the task of each output of `model`, in flattened order.

    If the graph does not show the form, the loss does: `from_logits=True` means logits.
    `values` is the output of the model for a batch.
    """
    losses = of_each(getattr(model, "output_names", None), loss, values)
    tensors = getattr(model, "outputs", None) or [None] * len(losses)
    return [_describe(*pair) for pair in zip(tensors, losses, strict=True)]


def losses_of(model: Model) -> list[Any]:
    """Returns the compiled loss of each of `model.outputs`, or None for no loss."""
    return of_each(getattr(model, "output_names", None), model.loss, output_of(model))


def output_of(model: Model) -> Any:
    """Returns the symbolic outputs of a model in their structure, or None."""
    graph = own_graph(model)
    return getattr(model, "outputs", None) if graph is None else graph.output


def of_each(names: Sequence[str] | None, by_output: Any, values: Any) -> list[Any]:
    """Returns the loss, or the labels, of each output, or None.

    `by_output` is one value for all outputs, or a dict or list. `values` are the
    outputs of the model in their structure.
    """
    count = len(keras.tree.flatten(values))
    if isinstance(by_output, dict):
        if isinstance(values, dict):
            paths = keras.tree.flatten_with_path(values)
            names = [str(path[-1]) for path, _ in paths]
        return [by_output.get(name) for name in names or [""] * count]
    if isinstance(by_output, (list, tuple)):
        return (
            list(by_output)
            if len(by_output) == count
            else [*by_output[:1], None][:1] * count
        )
    return [by_output] * count


def _describe(tensor: Tensor, loss: Any) -> ModelOutput:
    task = task_of(loss)
    form = OutputForm.UNKNOWN if tensor is None else form_in_graph(tensor)
    if form is OutputForm.UNKNOWN:
        form = _form_by_loss(loss, task)
    return ModelOutput(form, task)


def form_in_graph(tensor: Tensor) -> OutputForm:
    """Returns the form of a symbolic output from its layers, or `UNKNOWN`."""
    node = node_of(tensor)
    operation, inputs = node.operation, node.input_tensors
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        index = next(i for i, output in enumerate(node.outputs) if output is tensor)
        return form_in_graph(operation.outputs[index])
    if isinstance(operation, keras.layers.TimeDistributed):
        operation = operation.layer
    if type(operation).__module__.partition(".")[0] not in ("keras", "kerasmem"):
        return OutputForm.UNKNOWN  # a custom `call` can differ from its activation
    # `keras.ops.softmax` on a symbolic tensor creates an operation `Softmax`.
    function = getattr(operation, "activation", None) or type(operation)
    name = getattr(function, "__name__", "").lower()
    passes = isinstance(operation, keras.layers.Activation) and name == "linear"
    if inputs and (passes or isinstance(operation, _PASSING)):
        return form_in_graph(inputs[0])
    forms = {
        "softmax": OutputForm.SOFTMAX,
        "sigmoid": OutputForm.SIGMOID,
        "linear": OutputForm.LINEAR,
    }
    return forms.get(name, OutputForm.UNKNOWN)


def _form_by_loss(loss: Any, task: OutputTask) -> OutputForm:
    if task is OutputTask.UNKNOWN:
        return OutputForm.UNKNOWN
    if task is OutputTask.REGRESSION or getattr(loss, "from_logits", False):
        return OutputForm.LINEAR
    return OutputForm.SOFTMAX if task is OutputTask.CATEGORICAL else OutputForm.SIGMOID


def task_of(loss: Any) -> OutputTask:
    """Returns the task of a loss, which is a string, function or object."""
    if isinstance(loss, str) and loss.lower() in _TASKS:
        return _TASKS[loss.lower()]
    return _TASKS.get(_key(keras.losses.get(loss)), OutputTask.UNKNOWN)


def compares_entries(loss: Any) -> bool:
    """Returns whether a Keras loss needs labels in the shape of the outputs.

    Such a loss would broadcast labels of another shape and give a wrong result.
    """
    if loss is None:
        return False
    try:
        loss_of_keras = keras.losses.get(loss)
    except (ValueError, TypeError, KeyError):
        return False  # a format that only `fit` supports
    of_keras = (getattr(loss_of_keras, "__module__", None) or "").startswith("keras.")
    return of_keras and _key(loss_of_keras) in _ENTRYWISE


def takes_loss(model: Model) -> bool:
    """Returns whether a model trains with its compiled loss."""
    kind = type(model)
    return (
        model.compiled
        and kind.compute_loss is keras.Model.compute_loss
        and kind.train_step is keras.Model.train_step
    )


def _key(loss: Any) -> str:
    name = getattr(loss, "__name__", None) or type(loss).__name__
    return name.replace("_", "").lower()


_LONGEST = 500
_WORDS = {
    OutputForm.LINEAR: "unbounded values, without a softmax or sigmoid",
    OutputForm.SOFTMAX: "a softmax",
    OutputForm.SIGMOID: "a sigmoid",
}


def near_name(name: object, module: Any) -> str:
    """Returns a sentence with the most similar name of a Keras module, or `""`.

    Example:
        >>> near_name("acuracy", keras.metrics)
        " Did you mean 'accuracy'?"
    """
    # Keras accepts only the class name of `F1Score`.
    names = [
        each.lower() if each.istitle() and each.isalpha() else each
        for each in dir(module)
    ]
    return did_you_mean(name, names)


def as_loss(loss: Any) -> Any:
    """Converts a loss for `compile`; a string with arguments becomes a Keras object.

    Names of `keras.losses` may have literal keyword arguments.

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
            "Invalid loss. Expected: a name of keras.losses with literal keyword "
            "arguments, such as sparse_categorical_crossentropy(from_logits=True). "
            f"Received: {text[:_LONGEST]!r}, {' '.join(str(error).split())[:200]}"
        ) from error


def _name_and_arguments(text: str) -> tuple[str, dict[str, Any]]:
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters, which is too long")
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("not a name with arguments")
    keywords = {each.arg: each.value for each in call.keywords}
    if call.args or None in keywords:
        raise ValueError("arguments without names")
    return call.func.id, {
        str(name): ast.literal_eval(value) for name, value in keywords.items()
    }


def _classes() -> dict[str, Any]:
    public = vars(keras.losses).items()
    by_name = {
        name.lower(): each
        for name, each in public
        if inspect.isclass(each) and each is not keras.losses.Loss
    }
    classes = {each.__name__: each for each in by_name.values()}
    for name in [name for name, each in public if inspect.isfunction(each)]:
        if (key := name.replace("_", "")) in by_name:
            classes[name] = by_name[key]
    for short in ("mse", "mae", "mape", "msle", "kld"):
        classes[short] = classes[keras.losses.get(short).__name__]
    return classes


def warn_if_unfit(model: Model) -> None:
    """Warns if the compiled loss does not match the last layer of a model.

    Only checks crossentropies and last layers of Keras. Skips models without a graph or
    with a custom `compute_loss` or `train_step`.
    """
    if not takes_loss(model) or not getattr(model, "outputs", None):
        return
    try:
        pairs = zip(model.outputs, losses_of(model), strict=True)
        texts = list(_misfits(model.name, pairs))
    except (ValueError, TypeError, KeyError):
        return  # losses in a format that only `fit` supports
    for text in texts:
        warnings.warn(text, KerasMemWarning, stacklevel=3)


def _misfits(name: str, pairs: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for tensor, loss in pairs:
        loss_of_keras = None if loss is None else keras.losses.get(loss)
        of_keras = (getattr(loss_of_keras, "__module__", None) or "").startswith(
            "keras."
        )
        kind = getattr(loss_of_keras, "__name__", None) or type(loss_of_keras).__name__
        if not of_keras or not kind.lower().endswith("crossentropy"):
            continue
        task = task_of(loss)
        remedy = _remedy(
            form_in_graph(tensor),
            task,
            from_logits=bool(getattr(loss_of_keras, "from_logits", False)),
            recovers=current().recovers_logits and tensor.dtype == "float32",
        )
        if remedy:
            form = _WORDS[form_in_graph(tensor)]
            yield (
                f"The output {tensor.name!r} of the model {name!r} ends in {form}, and "
                f"the loss {kind} {remedy}"
            )


def _remedy(
    form: OutputForm, task: OutputTask, *, from_logits: bool, recovers: bool
) -> str | None:
    if task is OutputTask.UNKNOWN:
        return None
    if form is OutputForm.LINEAR and not from_logits:
        end = "a softmax" if task is OutputTask.CATEGORICAL else "a sigmoid"
        return (
            "expects probabilities, so training and metrics are wrong. Next: "
            "set from_logits=True (--loss 'NAME(from_logits=True)' on the command "
            f"line), or end the model in {end}."
        )
    if form is OutputForm.SIGMOID and task is OutputTask.CATEGORICAL:
        return (
            "expects probabilities of mutually exclusive classes. Next: end the "
            "model in a softmax, or use binary_crossentropy."
        )
    if (
        form in (OutputForm.SOFTMAX, OutputForm.SIGMOID)
        and from_logits
        and not recovers
    ):
        return (
            "expects logits, so the activation is applied twice. Next: set "
            "from_logits=False, or remove the last activation of the model."
        )
    return None


@contextmanager
def without_preprocessor(models: Iterable[Any]) -> Iterator[None]:
    """Lets KerasHub tasks accept token ids instead of texts in the scope."""
    preprocessors = [(model, getattr(model, "preprocessor", None)) for model in models]
    tasks = [pair for pair in preprocessors if pair[1] is not None]
    for task, _ in tasks:
        task.preprocessor = None
    try:
        yield
    finally:
        for task, preprocessor in tasks:
            task.preprocessor = preprocessor
