"""The bytes of layer outputs equal the arithmetic done by hand."""

import keras
import pytest
from keras import layers

from kerasmem.graph.activations import layer_activations, peak_activation_bytes

pytestmark = pytest.mark.one_backend


def by_name(model, batch_size=1):
    return {record.name: record for record in layer_activations(model, batch_size)}


def chain():
    return keras.Sequential(
        [
            keras.Input((10,), name="in"),
            layers.Dense(100, name="wide"),
            layers.Dense(20, name="mid"),
            layers.Dense(3, name="out"),
        ]
    )


def test_a_chain_holds_two_neighbors_at_once():
    # wide and mid together: 100 + 20 float32; before that in and wide: 10 + 100.
    assert peak_activation_bytes(chain()) == 4 * (100 + 20)
    assert peak_activation_bytes(chain(), batch_size=7) == 7 * 4 * (100 + 20)


def test_a_skip_connection_keeps_its_source_alive():
    x = keras.Input((10,))
    a = layers.Dense(10)(x)
    b = layers.Dense(50)(a)
    c = layers.Dense(10)(b)
    model = keras.Model(x, a + c)
    # While c is made: a (for the sum), b and c.
    assert peak_activation_bytes(model) == 4 * (10 + 50 + 10)


def test_an_early_output_of_the_model_stays_alive_to_the_end():
    x = keras.Input((1,))
    early = layers.Dense(1000)(x)
    late = layers.Dense(30)(layers.Dense(20)(layers.Dense(1)(early)))
    model = keras.Model(x, [early, late])
    assert peak_activation_bytes(model) == 4 * (1000 + 20 + 30)


def test_the_input_counts_until_its_last_use():
    x = keras.Input((1000,))
    model = keras.Model(x, layers.Dense(500)(layers.Dense(2)(x)))
    assert peak_activation_bytes(model) == 4 * (1000 + 2)


def test_two_inputs_wait_for_each_other():
    a, b = keras.Input((8,), name="a"), keras.Input((4,), name="b")
    model = keras.Model({"a": a, "b": b}, layers.Concatenate()([a, b]))
    assert peak_activation_bytes(model) == 4 * (8 + 4 + 12)


def test_a_dtype_counts_with_its_own_width():
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(5, 8, dtype="mixed_bfloat16"),
        ]
    )
    assert peak_activation_bytes(model) == 4 * 6 + 2 * 6 * 8


def test_a_nested_model_counts_like_its_layers():
    inner = chain()
    x = keras.Input((10,))
    nested = keras.Model(x, layers.Dense(1)(inner(x)))
    assert peak_activation_bytes(nested) == peak_activation_bytes(inner)
    assert [r.name for r in layer_activations(nested)][1:4] == ["wide", "mid", "out"]


def test_a_nested_model_takes_the_shapes_of_its_call():
    open_ended = keras.Sequential(
        [keras.Input((None, None, 1)), layers.Conv2D(2, 1), layers.GlobalMaxPooling2D()]
    )
    x = keras.Input((4, 4, 1))
    model = keras.Model(x, open_ended(x))
    assert peak_activation_bytes(open_ended) is None
    assert peak_activation_bytes(model) == 4 * (4 * 4 * 1 + 4 * 4 * 2)


def test_a_model_with_named_inputs_inside_a_model_gets_each_its_own():
    a, b = keras.Input((3,), name="a"), keras.Input((5,), name="b")
    inner = keras.Model({"b": b, "a": a}, [layers.Dense(7, name="of_b")(b), a])
    p, q = keras.Input((3,), name="p"), keras.Input((5,), name="q")
    model = keras.Model([p, q], inner({"a": p, "b": q}))
    assert peak_activation_bytes(model) == 4 * (3 + 5 + 7)
    assert by_name(model)["of_b"].output_shape == (1, 7)


def test_a_model_without_a_graph_has_no_estimate():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model(keras.ops.zeros((1, 2)))
    assert peak_activation_bytes(model) is None
    (record,) = layer_activations(model)
    assert (record.calls, record.output_bytes, record.output_shape) == (0, None, None)
    assert (record.parameters, record.weight_bytes) == (9, 36)


def test_a_record_says_what_a_layer_holds():
    record = by_name(chain(), batch_size=5)["mid"]
    assert record.class_name == "Dense"
    assert record.output_shape == (5, 20)
    assert record.output_bytes == 5 * 20 * 4
    assert record.parameters == 100 * 20 + 20
    assert record.weight_bytes == 4 * record.parameters
    assert record.calls == 1


def test_a_shared_layer_is_one_record_with_the_bytes_of_both_calls():
    shared = layers.Dense(4, name="shared")
    a, b = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([a, b], shared(a) + shared(b))
    record = by_name(model)["shared"]
    assert (record.calls, record.output_bytes) == (2, 2 * 4 * 4)
    assert sum(r.parameters for r in layer_activations(model)) == model.count_params()


def test_every_weight_is_counted_once():
    inner = chain()
    a, b = keras.Input((10,)), keras.Input((10,))
    model = keras.Model([a, b], layers.BatchNormalization()(inner(a) + inner(b)))
    records = layer_activations(model)
    assert sum(record.parameters for record in records) == model.count_params()
    assert sum(record.weight_bytes for record in records) == 4 * model.count_params()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_fixed_batch_size_is_kept(batch_size):
    inputs = keras.Input(batch_shape=(2, 5))
    model = keras.Model(inputs, layers.Dense(1)(inputs))
    assert peak_activation_bytes(model, batch_size) == 4 * 2 * (5 + 1)
