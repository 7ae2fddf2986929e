import pytest

from kerasmem.memory.timeline.names import Names, Origin
from kerasmem.memory.timeline.watched import LayerNode, Watched

pytestmark = pytest.mark.one_backend

ROOT = LayerNode(
    "model",
    {
        "dense": LayerNode("dense"),
        "dense_1": LayerNode("dense_1"),
        "lstm": LayerNode("lstm", {"lstm_cell": LayerNode("lstm/lstm_cell")}),
        "outer": LayerNode(
            "outer",
            {"inner": LayerNode("outer/inner", {"dense": LayerNode("inner/dense")})},
        ),
    },
)
MODEL = Watched("model", ROOT, (), ("loss_scale_optimizer", "adam"))


@pytest.mark.parametrize(
    ("operation", "layer", "phase", "place"),
    [
        ("StatefulPartitionedCall/model_1/dense_1/Relu", "dense", "forward", None),
        ("model_1/dense_1_2/Relu", "dense_1", "forward", None),
        ("model_1/dense_3/Relu", "dense", "forward", None),
        ("gradient_tape/model_1/dense_1_2/MatMul", "dense_1", "backward", None),
        ("model_1/outer_3/inner_1/dense_1/BiasAdd", "inner/dense", "forward", None),
        (
            "model_1/lstm_1/while/body/_37/model_1/lstm_1/while/"
            "gradient_tape/model_1/lstm_1/while/lstm_cell_1/split",
            "lstm/lstm_cell", "forward", None,
        ),
        ("replica_1/model_1/dense_1/MatMul", "dense", "forward", None),
        ("gradient_tape/replica_1/model_1/dense_1/MatMul", "dense", "backward", None),
        ("adam/Square_5", None, "optimizer", 5),
        ("StatefulPartitionedCall/cond/then/_48/cond/adam/Mul", None, "optimizer", 0),
        ("compile_loss/mean_squared_error/Sum", None, "forward", None),
        ("model_1/Cast", None, "forward", None),
        ("div_no_nan_1", None, "unknown", None),
        ("SameWorkerRecvDone", None, "input", None),
        ("IteratorGetNext", None, "input", None),
    ],
)  # fmt: skip
def test_a_tensorflow_name_tells_layer_and_phase(operation, layer, phase, place):
    names = Names(MODEL, "tensorflow")
    assert names.origin(operation) == Origin(layer, phase, place)


@pytest.mark.parametrize(
    ("operation", "layer", "phase"),
    [
        ("jit(train_step)/jvp(dense)/dot_general", "dense", "forward"),
        ("jit(train_step)/jvp(dense_1)/jit(relu)/max", "dense_1", "forward"),
        ("jit(train_step)/transpose(jvp(dense_1))/dot_general", "dense_1", "backward"),
        ("jit(train_step)/jvp(outer)/inner/dense/add", "inner/dense", "forward"),
        ("jit(train_step)/adam/mul", None, "optimizer"),
        ("jit(train_step)/add", None, "unknown"),
    ],
)
def test_an_xla_name_tells_layer_and_phase(operation, layer, phase):
    origin = Names(MODEL, "xla").origin(operation)
    assert (origin.layer, origin.phase) == (layer, phase)
