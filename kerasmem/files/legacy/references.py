"""How a config of Keras 2 names the tensors that go into a call.

A reference is `[layer, call, output]`, the first one of a call with its keyword
arguments behind that; a value that is no tensor stands in the place of `output`.
"""

from collections.abc import Iterator
from typing import Any

CONSTANT = "_CONSTANT_VALUE"


def is_reference(value: Any) -> bool:
    """Return True for the name of a layer with the numbers of a call and an output."""
    if not (isinstance(value, list) and len(value) in (3, 4)):
        return False
    name, call, output = value[:3]
    is_place = isinstance(call, int) and isinstance(output, int)
    return name == CONSTANT or (isinstance(name, str) and is_place)


def references(structure: Any) -> Iterator[Any]:
    """Yield all references to tensors, in keyword arguments too."""
    if is_reference(structure):
        if structure[0] != CONSTANT:
            yield structure
        structure = structure[3:]
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, list):
        for value in structure:
            yield from references(value)


def keyword_arguments(node: Any) -> dict[str, Any]:
    """Return the keyword arguments, which stand behind the first tensor."""
    while isinstance(node, dict) or (node and isinstance(node[0], list)):
        node = next(iter(node.values())) if isinstance(node, dict) else node[0]
    return node[3] if len(node) > 3 else {}


def without_arguments(node: Any) -> Any:
    """Return what goes in first, without the keyword arguments."""
    if isinstance(node, dict):
        return {key: without_arguments(value) for key, value in node.items()}
    if node and isinstance(node[0], list):
        return [without_arguments(value) for value in node]
    return node[:3]
