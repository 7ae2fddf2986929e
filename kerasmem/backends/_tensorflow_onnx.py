"""A Keras model through tf2onnx."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from kerasmem.backends._tensorflow_litert import quiet
from kerasmem.backends.litert import Argument
from kerasmem.errors import ModelError, first_line, text_of


def converted(
    call: Callable[..., Sequence[Any]], model: Any, arguments: Sequence[Argument]
) -> bytes:
    """Return an ONNX file; see `kerasmem.backends.onnx.converted`."""

    def outputs(*tensors: Any) -> dict[str, Any]:
        return {f"output_{i}": out for i, out in enumerate(call(*tensors))}

    signature = [tf.TensorSpec(a.shape, a.dtype, name=a.name) for a in arguments]
    try:
        with quiet(), _inlined():
            function = tf.function(outputs, input_signature=signature)
            made = _made(function.get_concrete_function(), [a.name for a in arguments])
            content = made.SerializeToString()
    except Exception as error:
        raise ModelError(
            f"tf2onnx cannot convert the model {model.name!r} to ONNX: "
            f"{first_line(text_of(error))[:300] or type(error).__name__}"
        ) from error
    # tf2onnx leaves an operation that it has nothing for as TensorFlow names it.
    has = importlib.import_module("onnx.defs").has
    nodes = made.graph.node
    missing = sorted({n.op_type for n in nodes if not has(n.op_type, n.domain)})
    if missing:
        raise ModelError(
            f"ONNX has no operation for {', '.join(missing)}, which the model "
            f"{model.name!r} uses. Expected: operations that tf2onnx knows. Next: put "
            "others in their place."
        )
    return content


def _made(function: Any, names: Sequence[str]) -> Any:
    """Return the ONNX model of a traced function whose inputs have these names."""
    # What comes after the arguments are tensors that the function found around itself.
    inputs = [tensor.name for tensor in function.inputs[: len(names)]]
    outputs = {t.name: name for name, t in function.structured_outputs.items()}
    graph = importlib.import_module("tf2onnx.tf_loader").from_function(
        function, inputs, list(outputs)
    )
    made, _ = importlib.import_module("tf2onnx.convert").from_graph_def(
        graph,
        input_names=inputs,
        output_names=list(outputs),
        tensors_to_rename={**dict(zip(inputs, names, strict=True)), **outputs},
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    return made


def _erfc(graph: Any, node: Any, name: str, _: Any) -> None:
    """Write `erfc(x)`, which is in the exact GELU, as `1 - erf(x)`."""
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
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # noqa: FBT003 - TensorFlow fixes it
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)
