"""The calls inside of a layer, and the layer left as it was."""

import keras
from keras import layers

from kerasmem.graph.calls import trace


class Gate(layers.Layer):
    def __init__(self):
        super().__init__(name="gate")
        self.dense = layers.Dense(8, name="inner")

    def build(self, shape):
        self.scale = self.add_weight(shape=(8,), name="scale")
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x) * self.scale + x


class Failing(Gate):
    def call(self, x):
        raise RuntimeError("no symbols")

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def model_of(layer):
    inputs = keras.Input((8,))
    return keras.Model(inputs, layer(inputs))


def calls(model, opened):
    return trace(model, 2, opens=lambda layer: isinstance(layer, opened)).calls


def test_an_opened_layer_shows_its_calls_with_their_variables_and_owner():
    gate = Gate()
    _, dense, product, total = calls(model_of(gate), Gate)
    assert dense.operation is gate.dense
    assert product.variables == (gate.scale,)
    assert (product.owner, total.owner) == (gate, gate)
    assert len(total.inputs) == 2
    assert total.outputs[0].shape == (2, 8)


def test_looking_inside_leaves_no_trace_at_the_layer():
    gate = Gate()
    model = model_of(gate)
    before = len(gate.dense._inbound_nodes)
    calls(model, Gate)
    assert len(gate.dense._inbound_nodes) == before


def test_a_layer_that_cannot_be_opened_stays_whole():
    failing = Failing()
    _, call = calls(model_of(failing), Gate)
    assert call.operation is failing


def test_open_lengths_are_taken_from_the_given_shapes():
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, layers.Dense(4)(inputs))
    traced = trace(model, 2, [(2, 5, 8)])
    assert traced.outputs[0].shape == (2, 5, 4)
