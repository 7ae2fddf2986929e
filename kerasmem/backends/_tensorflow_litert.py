"""A Keras model through TensorFlow's converter to LiteRT."""

import errno
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from typing import Any

import keras
import tensorflow as tf

from kerasmem.backends.litert import Argument
from kerasmem.errors import ModelError, first_line, text_of

_NEEDS_STATIC = "TensorListReserve"
_NO_KERNELS = {"Tensor"}
"""What looks like an operation in an error of Keras's own."""
_ALONE = threading.Lock()


def converted(
    call: Callable[..., Sequence[Any]],
    model: Any,
    arguments: Sequence[Argument],
    *,
    int8_weights: bool,
) -> bytes:
    """Return a LiteRT file; see `kerasmem.backends.litert.converted`."""

    def outputs(*tensors: Any) -> dict[str, Any]:
        return {f"output_{i}": out for i, out in enumerate(call(*tensors))}

    signature = [tf.TensorSpec(a.shape, a.dtype, name=a.name) for a in arguments]
    # By way of a SavedModel: made of a function, the file either has no names or, with
    # the model given beside it, reads variables that nothing ever wrote.
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder, quiet():
        try:
            archive = keras.export.ExportArchive()
            archive.track(model)
            archive.add_endpoint("serve", outputs, input_signature=signature)
            archive.write_out(folder, verbose=False)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            if int8_weights:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            return converter.convert()
        except OSError:  # such as on a full disk: of no model
            raise
        except Exception as error:
            if (full := os.strerror(errno.ENOSPC)) in str(error):
                raise OSError(errno.ENOSPC, full) from error
            raise ModelError(_why_not(model, text_of(error))) from error


def _why_not(model: Any, text: str) -> str:
    names = re.findall(r"'tf\.(\w+)' op|\btf\.(\w+)\(|'tf\.(\w+)' that was", text)
    missing = sorted({name for found in names for name in found if name} - _NO_KERNELS)
    if _NEEDS_STATIC in missing:
        return (
            f"LiteRT runs the loop over time steps in {model.name!r} only for a batch "
            f"of a fixed size ({', '.join(missing)}). Next: batch_size=1."
        )
    if missing:
        return (
            f"LiteRT has no kernel for {', '.join(missing)}, which the model "
            f"{model.name!r} uses. Expected: operations that LiteRT has. Next: put "
            "others in their place."
        )
    return (
        f"TensorFlow cannot convert the model {model.name!r} to LiteRT: "
        f"{first_line(text)[:300] or 'it does not say why'}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep off the terminal what Keras and a converter write on it.

    One thread at a time: the streams, and what a converter sets in TensorFlow, are
    those of the whole process.
    """
    with _ALONE:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            with redirect_stdout(StringIO()):
                yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
