"""Every test here compiles quickly; some are for TensorFlow only."""

import os

from tests.memory.quick_compiler import quick_compiler

__all__ = ["quick_compiler"]

# Only TensorFlow's CPU allocator can be limited.
collect_ignore = (
    []
    if os.environ.get("KERAS_BACKEND") == "tensorflow"
    else ["test_real_out_of_memory.py"]
)
