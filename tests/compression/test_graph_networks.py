"""Graph networks: a batch holds all nodes of a graph and cannot be cut."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import DataError, ModelError
from kerasmem.graph.activations import layer_activations, peak_activation_bytes
from tests.models import L

NODES, GRAPHS = 40, 2
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(GRAPHS * NODES, 8)).astype("float32")
LINKS = (RANDOM.random((GRAPHS * NODES, NODES)) < 0.2).astype("float32")
Y = RANDOM.integers(0, 3, GRAPHS * NODES)
ONE = [X[:NODES], LINKS[:NODES]], Y[:NODES]
BOTH = [X, LINKS], Y


class Neighbors(L.Layer):
    """Sums the rows of a node's neighbors."""

    def call(self, nodes, links):
        return keras.ops.matmul(links, nodes)


class ShapedNeighbors(Neighbors):
    """JAX and torch cannot infer the shape with an open batch axis."""

    def compute_output_shape(self, nodes_shape, links_shape):
        return links_shape[0], nodes_shape[1]


SCOPE = {"Neighbors": Neighbors, "ShapedNeighbors": ShapedNeighbors}


def graph_network(neighbors):
    keras.utils.set_random_seed(0)
    x, links = keras.Input((8,), name="x"), keras.Input((NODES,), name="links")
    hidden = neighbors()(L.Dense(32, "relu")(x), links)
    outputs = L.Dense(3, "softmax")(neighbors()(hidden, links))
    model = keras.Model([x, links], outputs)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def network():
    return graph_network(ShapedNeighbors)


def expected_outputs(model, data):
    """Returns the outputs, computed in NumPy, graph by graph."""
    (first, bias), (last, end) = (
        map(keras.ops.convert_to_numpy, (x.kernel, x.bias))
        for x in model.layers
        if isinstance(x, L.Dense)
    )
    (x, links), _ = data
    rows = []
    for start in range(0, len(x), NODES):
        nodes, near = x[start : start + NODES], links[start : start + NODES]
        logits = near @ (near @ np.maximum(nodes @ first + bias, 0)) @ last + end
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        rows.append(powers / powers.sum(-1, keepdims=True))
    return np.concatenate(rows)


@pytest.mark.parametrize(
    ("step", "data"),
    [
        (km.Quantize("int8"), ONE),
        (km.Quantize("int8-dynamic"), BOTH),
        (km.Quantize("int8-static"), BOTH),
        (km.Quantize("int4", rounding="gptq"), BOTH),
        (km.Prune(0.5), ONE),
    ],
    ids=["int8", "int8-dynamic", "int8-static", "gptq", "prune"],
)
def test_a_graph_network_is_compressed_and_judged_in_whole_batches(network, step, data):
    expected = expected_outputs(network, data)
    outputs = network.predict(data[0], batch_size=NODES, verbose=0)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    result = km.compress(
        network,
        step,
        data=data,
        validation_data=data,
        batch_size=NODES,
        max_drop=1.0,
        custom_objects=SCOPE,
    )
    before, after = result.report.before.metrics, result.report.after.metrics
    accuracy = float((expected.argmax(-1) == data[1]).mean())
    assert before["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    small = result.model.evaluate(*data, batch_size=NODES, return_dict=True, verbose=0)
    assert after["accuracy"] == pytest.approx(small["accuracy"], abs=1e-6)
    assert result.report.before.latency_batch_size in (None, NODES)


def test_a_network_for_another_batch_is_refused_by_a_data_error(network):
    with pytest.raises(DataError, match="cannot be called with the inputs"):
        km.compress(network, km.Quantize("int8"), data=BOTH, batch_size=2 * NODES)


def test_the_batch_size_of_the_graph_is_named(network):
    with pytest.raises(DataError, match="in one batch. Expected: batch_size=40"):
        km.compress(network, km.Quantize("int8"), data=ONE)


def test_a_search_is_refused_before_the_work(network):
    with pytest.raises(DataError, match="A search draws single samples"):
        km.compress(
            network, max_drop=0.1, data=ONE, validation_data=BOTH, batch_size=NODES
        )


@pytest.mark.one_backend
def test_the_activations_of_an_open_batch_are_unknown():
    network = graph_network(Neighbors)
    assert peak_activation_bytes(network) is None
    assert [each.output_bytes for each in layer_activations(network)] == [None] * 6
    assert peak_activation_bytes(network, NODES) > 4 * NODES * 32
    with pytest.raises(ModelError, match="does not accept inputs of the shapes"):
        km.estimate_memory(network, 7)


@pytest.mark.one_backend
def test_a_file_has_the_batch_size_of_the_samples(network, tmp_path):
    result = km.compress(
        network, km.Quantize("int8"), data=ONE, batch_size=NODES, custom_objects=SCOPE
    )
    path = tmp_path / "model.tflite"
    assert result.export(path).difference < 0.1
    report = km.export(network, path, samples=(ONE[0],))
    assert (report.samples, report.difference < 1e-5) == (NODES, True)
    assert km.export(network, path, batch_size=NODES).samples == NODES
