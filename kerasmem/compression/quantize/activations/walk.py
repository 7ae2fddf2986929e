"""One forward pass of a model, tensor by tensor, none kept longer than it is needed."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras

from kerasmem.compression.quantize.activations.calls import Calls, flatten

See = Callable[[str, Any], None]


def walk(model: Any, inputs: Sequence[Any], see: See) -> None:
    """Run `model` in inference and show every tensor as it comes.

    Models within it are opened. Each call of a shared layer has a name of its own:
    `"dense"`, `"dense:1"`; so has each further output: `"split"`, `"split.1"`.

    Args:
        model: a built model with a graph.
        inputs: a tensor per input, in order.
        see: is called with the name of a tensor and the tensor.
    """
    walk_calls(flatten(model), inputs, see)


def walk_calls(calls: Calls, inputs: Sequence[Any], see: See) -> None:
    """Run calls as `walk` runs those of a model."""
    uses = Counter(number for call in calls.calls for number in call.inputs)
    known = dict(zip(calls.inputs, inputs, strict=True))
    for number, value in known.items():
        see(calls.names[number], value)
    for call in calls.calls:
        args, kwargs = call.arguments(known)
        # Outside of a model's call a layer runs in inference unless it is told
        # otherwise.
        outputs = keras.tree.flatten(call.operation(*args, **kwargs))
        for number, output in zip(call.outputs, outputs, strict=True):
            see(calls.names[number], output)
            if uses[number]:
                known[number] = output
        for number in call.inputs:
            uses[number] -= 1
            if not uses[number]:
                known.pop(number, None)
