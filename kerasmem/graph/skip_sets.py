"""What Keras passes over in a layer that it saves or loads, looked up once."""

from collections.abc import Iterator
from contextlib import contextmanager

# Private: Keras has no other way to be told what it has found out.
from keras.src.backend.common import global_state  # noqa: TID251
from keras.src.saving import saving_lib  # noqa: TID251

_KINDS = ("Layer", "Operation")


@contextmanager
def skip_sets() -> Iterator[None]:
    """Return a scope in which Keras makes no further layer for each that it saves.

    It makes one to see which attributes all layers have: a quarter of the time of
    `model.save`. It notes their names under one key, and looks for them under another.
    """
    keys = {f"saving_attr_skiplist_{kind}": kind for kind in _KINDS}
    before = {key: global_state.get_global_attribute(key) for key in keys}
    for key, kind in keys.items():
        global_state.set_global_attribute(key, saving_lib.get_attr_skipset(kind))
    try:
        yield
    finally:
        for key, names in before.items():
            global_state.set_global_attribute(key, names)
