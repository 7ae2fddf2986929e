"""What the gradient of an operation needs, and what it costs to run it again."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import keras

from kerasmem.graph.layer_table import entry_of


class Role(Enum):
    """How an operation takes part in the backward pass."""

    LINEAR = "its gradient needs none of its inputs"
    CHEAP = "its gradient needs its input or output, and it is cheap to run again"
    JOINING = "the same, but its input is not to be rounded"
    KERNEL = "its gradient needs its input, and it is dear to run again"
    MODEL = "a nested model: its own operations have roles"


def roles_of(nodes: Sequence[Any]) -> list[Role]:
    """Return the role of each call of a graph.

    What leads from a kernel to a softmax by linear operations alone stays with it.
    """
    roles: list[Role] = []
    joining: set[int] = set()
    for node in reversed(nodes):
        role = role_of(node.operation)
        if role is Role.LINEAR and any(id(y) in joining for y in node.outputs):
            role = Role.JOINING
        if role is Role.JOINING:
            joining.update(id(x) for x in node.input_tensors)
        roles.append(role)
    return roles[::-1]


def role_of(operation: Any) -> Role:
    """Return the role of a layer or of a `keras.Operation` such as `a + b`.

    Whatever is not known to be cheap, such as a layer of the user's own, is taken for
    dear.
    """
    if isinstance(operation, keras.Model):
        return Role.MODEL
    if getattr(operation, "activity_regularizer", None) is not None:
        return Role.KERNEL
    entry = entry_of(operation)
    if entry.channels == "activation":
        # A mask of -1e9 among scores would take all eight bits.
        own = {"linear": Role.LINEAR, "softmax": Role.JOINING}
        named = (getattr(keras.activations, name) for name in own)
        found = dict(zip(named, own.values(), strict=True)).get(operation.activation)
        return found or Role.CHEAP
    return Role[entry.residuals.upper()]
