"""The check of a regular expression that a technique was given."""

import re
from typing import Any

from kerasmem.errors import ConfigError


def check_regular_expression(technique: str, field: str, pattern: Any) -> None:
    """Raise an error if `pattern` is no regular expression.

    Args:
        technique: class name of the technique, for the text of the error.
        field: the argument that it came in.
        pattern: what was given.

    Raises:
        ConfigError: if it is none.
    """
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"The {field} of {technique} holds regular expressions. "
            f"Received: {pattern!r}, which is none: {error}."
        ) from error
