"""A Keras model through TensorFlow's converter to LiteRT, and through tf2onnx.

Both take functions of TensorFlow: they run only where Keras runs on it.
"""

import errno
import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from typing import Any

import keras
import numpy as np

from kerasmem.errors import ModelError, first_line, text_of
from kerasmem.types import Model

_NEEDS_STATIC = "TensorListReserve"
_NO_KERNELS = {"Tensor"}
"""What looks like an operation in an error of Keras's own."""
_ALONE = threading.Lock()


@dataclass(frozen=True)
class Argument:
    """One input of an exported file.

    Args:
        name: what the file calls it.
        shape: with the batch axis; None where a length stays open.
        dtype: name of its dtype.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


def to_litert(
    call: Callable[..., Sequence[Any]],
    model: Model,
    arguments: Sequence[Argument],
) -> bytes:
    """Return a LiteRT file of `call`, whose outputs it names `output_0` and so on.

    Args:
        call: takes a tensor per argument, returns the outputs of `model`.
        model: whose weights go into the file.
        arguments: the inputs of the file.

    Raises:
        ModelError: if LiteRT lacks an operation of the model; it names it.
    """
    import tensorflow as tf

    outputs, signature = _endpoint(call, arguments)
    # By way of a SavedModel: made of a function, the file either has no names or, with
    # the model given beside it, reads variables that nothing ever wrote.
    with tempfile.TemporaryDirectory(prefix="kerasmem-") as folder, quiet():
        try:
            archive = keras.export.ExportArchive()
            archive.track(model)
            archive.add_endpoint("serve", outputs, input_signature=signature)
            archive.write_out(folder, verbose=False)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            return converter.convert()
        except OSError:  # such as on a full disk: of no model
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
    """Return an ONNX file of `call`, whose outputs it names `output_0` and so on.

    Args:
        call: takes a tensor per argument, returns the outputs of `model`.
        model: whose weights go into the file.
        arguments: the inputs of the file.

    Raises:
        ModelError: if ONNX lacks an operation of the model; it names it.
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
    # tf2onnx leaves an operation that it has nothing for as TensorFlow names it.
    has = importlib.import_module("onnx.defs").has
    nodes = onnx_model.graph.node
    missing = sorted({n.op_type for n in nodes if not has(n.op_type, n.domain)})
    if missing:
        raise ModelError(
            f"ONNX has no operation for {', '.join(missing)}, which the model "
            f"{model.name!r} uses. Expected: operations that tf2onnx knows. Next: put "
            "others in their place."
        )
    return content


def _onnx_model_of(function: Any, names: Sequence[str]) -> Any:
    # What comes after the arguments are tensors that the function found around itself.
    inputs = [tensor.name for tensor in function.inputs[: len(names)]]
    outputs = {t.name: name for name, t in function.structured_outputs.items()}
    graph = importlib.import_module("tf2onnx.tf_loader").from_function(
        function, inputs, list(outputs)
    )
    onnx_model, _ = importlib.import_module("tf2onnx.convert").from_graph_def(
        graph,
        input_names=inputs,
        output_names=list(outputs),
        tensors_to_rename={**dict(zip(inputs, names, strict=True)), **outputs},
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    return onnx_model


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
    """Trace functions within a function as parts of it.

    Keras compiles some convolutions as a function of their own, for which tf2onnx has
    nothing.
    """
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # noqa: FBT003 - TensorFlow fixes it
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
