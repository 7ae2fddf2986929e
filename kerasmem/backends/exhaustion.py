"""Telling an error of too little memory from any other."""

_NAMES = frozenset({"OutOfMemoryError", "ResourceExhaustedError"})
_WORDS = (
    "RESOURCE_EXHAUSTED",
    "Resource exhausted",
    "out of memory",
    "can't allocate memory",
    "OOM when allocating",
    "alloc failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a framework raised `error` because memory ran out.

    By its name and words: the classes differ from one framework to the next, and JAX
    and torch raise plain ones too.

    Example:
        >>> is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: Out of memory")), (
        ...     is_out_of_memory(ValueError("shapes differ")))
        (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ in _NAMES:
        return True
    return any(word in str(error) for word in _WORDS)
