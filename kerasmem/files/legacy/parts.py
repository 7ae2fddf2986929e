"""What a file of Keras 2 keeps of one object, and of the objects in it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Part:
    """The arrays of one object, and those of the objects that it holds.

    Args:
        arrays: by name, or by their number where the file keeps no names.
        parts: by the name of the attribute; of a list, by class or number.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    parts: dict[str, "Part"] = field(default_factory=dict)

    def listed(self, classes: Sequence[str]) -> list["Part"]:
        """Return the parts of a list of objects, given their classes.

        A `.keras` file counts the objects of each class by itself, a SavedModel all of
        them. What keeps nothing has an empty part.

        Example:
            >>> Part(parts={"dense_1": Part({"0": 5})}).listed(["Dense", "Dense"])[1]
            Part(arrays={'0': 5}, parts={})
        """
        seen: Counter[str] = Counter()
        found = []
        for index, name in enumerate(map(snake_case, classes)):
            by_class = f"{name}_{seen[name]}" if seen[name] else name
            seen[name] += 1
            part = self.parts.get(by_class) or self.parts.get(str(index))
            found.append(part or Part())
        return found


def snake_case(name: str) -> str:
    """Return the name that Keras 2 makes of the name of a class.

    Example:
        >>> snake_case("Custom>SeparableConv2D")
        'separable_conv2d'
    """
    words = re.sub(r"\W+", "", name.rpartition(">")[2])
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", words)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
