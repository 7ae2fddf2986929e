"""Graphs of TensorFlow steps, as executed on a GPU or on this CPU."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import (
    config_pb2,
    device_properties_pb2,
    meta_graph_pb2,
    rewriter_config_pb2,
)

from kerasmem.backends.profile import Followed
from kerasmem.backends.trace import STOP_TOKEN, Graph, Operation, OperationOutput, Step
from kerasmem.errors import ConfigError
from kerasmem.types import Model, Tensor, Tensors

_ATTRIBUTES = ("equation", "data_format", "rnn_mode")
_ON_THE_HOST = 16  # maximum number of entries of int32 tensors in host memory
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
# GPU properties that TensorFlow's optimizer reads, for example for tensor cores.
_GPU_ENVIRONMENT = {"architecture": "9.0", "cuda": "12050", "cudnn": "9030"}


def step_graph(
    followed: Followed, batch: Tensors, *, step: Step, on_gpu: bool
) -> Graph:
    """Return the optimized graph of a step without running the step.

    A model for training must be compiled, with a built optimizer. `batch` is a nest of
    `keras.KerasTensor`. With `on_gpu`, no GPU needs to be present.
    """
    specs = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)), batch
    )
    function = _step_of(followed.model, step)
    with _gpu_listed() if on_gpu else nullcontext():
        concrete_function = tf.function(
            function, autograph=False
        ).get_concrete_function(specs)
    definition = _optimized(concrete_function, on_gpu=on_gpu)
    return _graph(definition, concrete_function, followed.variables)


def compiles_on_gpu(layers: Iterable[Any]) -> bool:
    """Return whether XLA could compile all `layers` on a GPU."""
    with _gpu_listed():
        # Recurrent layers decide at construction, because XLA has no cuDNN kernels.
        return all(
            type(layer).from_config(layer.get_config()).supports_jit
            if isinstance(layer, keras.layers.RNN)
            else layer.supports_jit
            for layer in layers
        )


@contextmanager
def _gpu_listed() -> Iterator[None]:
    list_devices = tf.config.list_logical_devices
    gpu = tf.config.LogicalDevice("/device:GPU:0", "GPU")

    def with_gpu(device_type: str | None = None) -> list[Any]:
        return [*list_devices(device_type), *([gpu] if device_type != "CPU" else [])]

    # No issue known: layers of Keras 3.15 have no argument for the kernels of an absent
    # device.
    tf.config.list_logical_devices = with_gpu
    try:
        yield
    finally:
        tf.config.list_logical_devices = list_devices


def _optimized(traced: Any, *, on_gpu: bool) -> graph_pb2.GraphDef:
    """Return the graph after TensorFlow's graph optimizer (Grappler).

    It changes layouts, folds constants and reorders factors, and therefore changes the
    saved activations.
    """
    # Private: TensorFlow optimizes only for existing devices and does not return the
    # result.
    from tensorflow.python.grappler import cluster, tf_optimizer

    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    return tf_optimizer.OptimizeGraph(
        config,
        _meta_graph(traced, device=_GPU if on_gpu else _CPU),
        verbose=False,
        cluster=cluster.Cluster(devices=list(_devices(on_gpu=on_gpu))),
        strip_default_attributes=False,
    )


def _devices(*, on_gpu: bool) -> Iterator[device_properties_pb2.NamedDevice]:
    cpu = device_properties_pb2.NamedDevice(name=_CPU)
    cpu.properties.type, cpu.properties.num_cores = "CPU", 16
    yield cpu
    if on_gpu:
        gpu = device_properties_pb2.NamedDevice(name=_GPU)
        gpu.properties.type, gpu.properties.num_cores = "GPU", 132
        gpu.properties.environment.update(_GPU_ENVIRONMENT)
        yield gpu


def _meta_graph(traced: Any, device: str) -> meta_graph_pb2.MetaGraphDef:
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(traced.graph.as_graph_def())
    handles = {
        placeholder.op.name: source._handle_data.shape_and_type[0]
        for source, placeholder in traced.graph.captures
        if placeholder.dtype == tf.resource
    }
    for node in meta.graph_def.node:
        if node.name in handles:
            _make_variable(node, handles[node.name])
        node.device = device
    # The optimizer keeps the named nodes and removes unused ones.
    names = [tensor.op.name for tensor in (*traced.outputs, *traced.inputs)]
    names += [operation.name for operation in traced.graph.control_outputs]
    meta.collection_def["train_op"].node_list.value.extend(dict.fromkeys(names))
    return meta


def _make_variable(node: Any, handle: Any) -> None:
    name = node.name
    node.Clear()
    node.name, node.op = name, "VarHandleOp"
    node.attr["dtype"].type = handle.dtype
    node.attr["shape"].shape.CopyFrom(handle.shape)
    node.attr["shared_name"].s = name.encode()


def _graph(
    definition: graph_pb2.GraphDef, traced: Any, variables: Sequence[Any]
) -> Graph:
    positions = {op.name: n for n, op in enumerate(traced.graph.get_operations())}
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    nodes = _in_order(
        [graph.get_operation_by_name(n.name) for n in definition.node], positions
    )
    index = {node.name: number for number, node in enumerate(nodes)}
    numbers = {id(v.value.handle): number for number, v in enumerate(variables)}
    handles = {
        placeholder.op.name: numbers.get(id(tensor))
        for tensor, placeholder in traced.graph.captures
    }
    operations = [_operation(node, index, handles.get(node.name)) for node in nodes]
    results = [(index[t.op.name], t.value_index) for t in traced.outputs]
    return Graph(operations, results)


def _in_order(nodes: list[Any], positions: dict[str, int]) -> list[Any]:
    """Return the nodes in the order of the traced graph.

    Nodes from the optimizer follow their last input. The execution order of the
    consumers of a tensor is their order of creation.
    """
    place: dict[str, float] = {}
    for node in nodes:
        inputs = (place.get(tensor.op.name, -1.0) for tensor in node.inputs)
        place[node.name] = positions.get(node.name, max(inputs, default=-1.0) + 0.5)
    return sorted(nodes, key=lambda node: place[node.name])


def _operation(node: Any, index: dict[str, int], variable: int | None) -> Operation:
    attributes: dict[str, Any] = {} if variable is None else {"variable": variable}
    for name in _ATTRIBUTES:
        if name in node.node_def.attr:
            value = node.get_attr(name)
            attributes[name] = value.decode() if isinstance(value, bytes) else value
    return Operation(
        name=node.name,
        kind=node.type,
        inputs=tuple((index[t.op.name], t.value_index) for t in node.inputs),
        after=tuple(index[other.name] for other in node.control_inputs),
        outputs=_outputs(node),
        attributes=attributes,
    )


def _outputs(node: Any) -> tuple[OperationOutput, ...]:
    if node.type == "VarHandleOp":
        shape = tuple(size.size for size in node.get_attr("shape").dim)
        return (OperationOutput(shape, tf.as_dtype(node.get_attr("dtype")).size),)
    return tuple(_output(tensor) for tensor in node.outputs)


def _output(tensor: Tensor) -> OperationOutput:
    shape = tuple(tensor.shape) if tensor.shape.is_fully_defined() else None
    if tensor.dtype in {tf.resource, tf.variant, tf.string}:
        return OperationOutput(shape, 0)
    output = OperationOutput(shape, tensor.dtype.size)
    is_shape = tensor.dtype == tf.int32 and 0 < output.entries <= _ON_THE_HOST
    return OperationOutput(shape, 0) if is_shape else output


_DUMP = re.compile(r"--xla_dump_to=(\S+)")
_TEMPORARY = re.compile(r"size (\d+), preallocated-temp")


def step_module(followed: Followed, batch: Tensors, *, step: Step) -> bytes:
    """Return the serialized, unoptimized `HloModuleProto` of a step."""
    return _ir(followed, batch, step)(stage="hlo_serialized")


def gpu_program(followed: Followed, batch: Tensors, *, step: Step) -> tuple[str, bytes]:
    """Return `"hlo"` and the serialized `HloModuleProto` of a step on any device."""
    return "hlo", step_module(followed, batch, step=step)


def compiled_bytes(followed: Followed, batch: Tensors, *, step: Step) -> int:
    """Return the temporary bytes that XLA plans for a step on this machine.

    Raises `ConfigError` if `XLA_FLAGS` does not enable dumps.
    """
    folder = _DUMP.search(os.environ.get("XLA_FLAGS", ""))
    if folder is None:
        raise ConfigError(
            "XLA writes its plan only if XLA_FLAGS was set before the process started. "
            "Expected: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'. "
            f"Received: XLA_FLAGS={os.environ.get('XLA_FLAGS', '')!r}."
        )
    before = set(_plans(folder[1]))
    _ir(followed, batch, step)(stage="optimized_hlo")
    sizes = [
        int(size)
        for path in set(_plans(folder[1])) - before
        for size in _TEMPORARY.findall(path.read_text(encoding="utf-8"))
    ]
    return max(sizes, default=0)


def _plans(folder: str) -> list[Path]:
    return list(Path(folder).glob("*buffer-assignment.txt"))


def _step_of(model: Model, step: Step) -> Callable[[Any], Any]:
    if step == "generate":
        return lambda batch: model.generate_step(*batch, (STOP_TOKEN,))
    return model.train_step if step == "train" else model.predict_step


def _ir(followed: Followed, batch: Tensors, step: Step) -> Any:
    function = _step_of(followed.model, step)

    # The compiler IR function accepts tensors, but no nests.
    def flat_step(*tensors: Any) -> Any:
        return function(tf.nest.pack_sequence_as(batch, tensors))

    compiled_step = tf.function(flat_step, autograph=False, jit_compile=True)
    specs = [
        tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)) for x in tf.nest.flatten(batch)
    ]
    return compiled_step.experimental_get_compiler_ir(*specs)
