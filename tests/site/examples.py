"""An extension of griffe: `Example:` in a docstring is a section of code."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Names a docstring's example as griffe does, which knows the plural alone."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object before it is parsed."""
        if obj.docstring:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = text
