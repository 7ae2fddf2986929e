"""Conversion of Keras models to LiteRT and ONNX with TensorFlow's tools.

Both converters need functions of TensorFlow, and therefore its Keras backend.
"""

import errno
import gc
import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelError, first_line, text_of
from kerasmem.types import Model

_NEEDS_STATIC = "TensorListReserve"
_NO_KERNELS = {"Tensor"}
"""Names in Keras error messages that are not missing operations."""
_ALONE = threading.Lock()


@dataclass(frozen=True)
class Argument:
    """An input of an exported file. A variable length in `shape` is None."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def to_litert(
    call: Callable[..., Sequence[Any]],
    model: Model,
    arguments: Sequence[Argument],
) -> bytes:
    """Convert a function to LiteRT, with outputs `output_0`, `output_1` and so on.

    `call` computes the outputs of `model` from a tensor per argument. Raises
    `ModelError` if LiteRT lacks an operation.
    """
    import tensorflow as tf

    outputs, signature = _endpoint(call, arguments)
    # A SavedModel is needed: without it, the file has no names, or, if the model is
    # passed too, reads uninitialized variables.
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder, quiet():
        try:
            archive = keras.export.ExportArchive()
            archive.track(model)
            archive.add_endpoint("serve", outputs, input_signature=signature)
            archive.write_out(folder, verbose=False)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            return converter.convert()
        except OSError:  # for example a full disk; not an error of the model
            raise
        except Exception as error:
            if (full := os.strerror(errno.ENOSPC)) in str(error):
                raise OSError(errno.ENOSPC, full) from error
            raise ModelError(_why_not(model, text_of(error))) from error


def _endpoint(
    call: Callable[..., Sequence[Any]], arguments: Sequence[Argument]
) -> tuple[Callable[..., dict[str, Any]], list[Any]]:
    import tensorflow as tf

    def outputs(*tensors: Any) -> dict[str, Any]:
        return {f"output_{i}": out for i, out in enumerate(call(*tensors))}

    return outputs, [tf.TensorSpec(a.shape, a.dtype, name=a.name) for a in arguments]


def _why_not(model: Model, text: str) -> str:
    names = re.findall(r"'tf\.(\w+)' op|\btf\.(\w+)\(|'tf\.(\w+)' that was", text)
    missing = sorted({name for match in names for name in match if name} - _NO_KERNELS)
    if _NEEDS_STATIC in missing:
        return (
            f"LiteRT supports the loop over time steps in {model.name!r} only with a "
            f"fixed batch size ({', '.join(missing)}). Next: batch_size=1."
        )
    if missing:
        return (
            f"LiteRT has no kernel for {', '.join(missing)} in the model "
            f"{model.name!r}. Expected: operations that LiteRT supports. Next: replace "
            "these operations."
        )
    return (
        f"TensorFlow cannot convert the model {model.name!r} to LiteRT: "
        f"{first_line(text)[:300] or 'unknown reason'}"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress terminal output of Keras and the converters.

    One thread at a time, because streams and TensorFlow settings belong to the process.
    """
    with _ALONE:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        original, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            with redirect_stdout(StringIO()):
                yield
        finally:
            os.dup2(original, 2)
            os.close(original)
            os.close(nowhere)


def to_onnx(
    call: Callable[..., Sequence[Any]], model: Model, arguments: Sequence[Argument]
) -> bytes:
    """Convert a function to ONNX, with outputs `output_0`, `output_1` and so on.

    `call` computes the outputs of `model` from a tensor per argument. Raises
    `ModelError` if ONNX lacks an operation.
    """
    import tensorflow as tf

    outputs, signature = _endpoint(call, arguments)
    try:
        with quiet(), _inlined():
            function = tf.function(outputs, input_signature=signature)
            onnx_model = _onnx_model_of(
                function.get_concrete_function(), [a.name for a in arguments]
            )
            content = onnx_model.SerializeToString()
    except Exception as error:
        raise ModelError(
            f"tf2onnx cannot convert the model {model.name!r} to ONNX: "
            f"{first_line(text_of(error))[:300] or type(error).__name__}"
        ) from error
    # tf2onnx keeps TensorFlow's name for an operation that it cannot convert.
    has = importlib.import_module("onnx.defs").has
    nodes = onnx_model.graph.node
    missing = sorted({n.op_type for n in nodes if not has(n.op_type, n.domain)})
    if missing:
        raise ModelError(
            f"ONNX has no operation for {', '.join(missing)} in the model "
            f"{model.name!r}. Expected: operations of tf2onnx. Next: replace these "
            "operations."
        )
    return content


def _onnx_model_of(function: Any, names: Sequence[str]) -> Any:
    # The inputs after the arguments are captured tensors.
    inputs = [tensor.name for tensor in function.inputs[: len(names)]]
    outputs = {t.name: name for name, t in function.structured_outputs.items()}
    graph = importlib.import_module("tf2onnx.tf_loader").from_function(
        function, inputs, list(outputs)
    )
    convert = partial(
        importlib.import_module("tf2onnx.convert").from_graph_def,
        graph,
        input_names=inputs,
        output_names=list(outputs),
        tensors_to_rename={**dict(zip(inputs, names, strict=True)), **outputs},
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    gc.collect()  # earlier graphs contain the weights, and refer to each other
    try:
        with _without_copies():
            return convert()[0]
    except Exception:  # noqa: BLE001 - an optimizer may fail, and is then skipped
        return convert()[0]


@contextmanager
def _without_copies() -> Iterator[None]:
    """Set `TF2ONNX_CATCH_ERRORS`, so that a failing optimizer fails the conversion.

    Otherwise tf2onnx 1.17 copies the graph with its weights before each of its
    optimizers. No upstream issue about the memory of these copies is known.
    """
    name = "TF2ONNX_CATCH_ERRORS"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _erfc(graph: Any, node: Any, name: str, _: Any) -> None:
    dtype = graph.get_dtype(node.output[0])
    erf = graph.make_node("Erf", node.input, dtypes=[dtype])
    one = graph.make_const(f"{name}_one", np.ones((), np.float32))
    graph.remove_node(name)
    graph.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=node.output, dtypes=[dtype]
    )


@contextmanager
def _inlined() -> Iterator[None]:
    """Trace nested functions inline.

    Keras compiles some convolutions as nested functions, which tf2onnx cannot convert.
    """
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # noqa: FBT003 - TensorFlow fixes it
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
