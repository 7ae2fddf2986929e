"""Some tests are for JAX only."""

import os

# Only on JAX are processes that train together within reach of one machine.
collect_ignore = (
    [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_in_two_processes.py"]
)
