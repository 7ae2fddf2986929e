"""What layers take and make on samples, against a model of the layers before them."""

import keras
import numpy as np
import pytest

from kerasmem.backends.patching import observing
from kerasmem.graph.observe import observe
from tests.models import L


def nested():
    """Return a model with a shared layer, called twice, and one inside of a model."""
    keras.utils.set_random_seed(0)
    shared = L.Dense(4, name="shared")
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, L.Dense(4, name="deep")(inner_in), name="inner")
    x = keras.Input((4,))
    model = keras.Model(x, shared(inner(shared(x))))
    return model, shared, inner.get_layer("deep")


def batches(count=3, size=5):
    draw = np.random.default_rng(1)
    return [draw.normal(size=(size, 4)).astype("float32") for _ in range(count)]


def array(x):
    return keras.ops.convert_to_numpy(x)


def test_every_call_of_shared_and_nested_layers_is_seen_with_its_values():
    model, shared, deep = nested()
    seen = []

    def note(call):
        seen.append((call.layer.name, array(call.x), array(call.outputs)))

    given = batches()
    assert observe(model, iter(given), [shared, deep], outputs=note) == 15
    assert [name for name, *_ in seen] == ["shared", "deep", "shared"] * 3
    for number, batch in enumerate(given):
        (_, x, one), (_, two, three), (_, four, end) = seen[3 * number : 3 * number + 3]
        np.testing.assert_array_equal(x, batch)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(three, four)
        np.testing.assert_array_equal(end, array(model(batch)))
    assert "call" not in {**vars(shared), **vars(deep)}


def test_inputs_are_seen_before_and_may_be_answered_in_place_of_the_layer():
    model, shared, deep = nested()
    order = []

    def before(call):
        order.append(("before", call.layer.name, call.outputs))
        return keras.ops.zeros_like(call.x) if call.layer is deep else None

    def after(call):
        order.append(("after", call.layer.name))

    observe(model, batches(1), [shared, deep], inputs=before, outputs=after)
    assert order == [
        ("before", "shared", None),
        ("after", "shared"),
        ("before", "deep", None),
        ("before", "shared", None),
        ("after", "shared"),
    ]
    (x,) = batches(1)
    with observing([deep], inputs=lambda call: keras.ops.zeros_like(call.x)):
        np.testing.assert_array_equal(
            array(model(x)), np.broadcast_to(array(shared.bias), (5, 4))
        )


def test_masks_come_with_the_call_and_run_gives_what_the_layer_makes():
    x = keras.Input((3,), dtype="int32")
    norm = L.BatchNormalization()
    model = keras.Model(x, norm(L.Embedding(5, 2, mask_zero=True)(x)))
    tokens = np.array([[1, 2, 0], [3, 0, 0]], "int32")
    masks = []

    def see(call):
        masks.append(array(call.kwargs["mask"]).tolist())
        return call.run() + 1.0

    with observing([norm], inputs=see):
        changed = array(model(tokens))
    np.testing.assert_allclose(changed, array(model(tokens)) + 1.0)
    assert masks == [(tokens != 0).tolist()]


def test_a_layer_in_int8_of_keras_is_seen_too():
    model, shared, _ = nested()
    shared.quantize("int8")
    count = observe(model, batches(2), [shared, shared], outputs=lambda _: None)
    seen = []
    observe(model, batches(2), [shared, shared], outputs=seen.append)
    assert (count, len(seen)) == (10, 4)


def test_an_error_leaves_the_layers_as_they_were():
    model, shared, deep = nested()

    def fail(call):
        if call.layer is deep:
            raise RuntimeError("deep")

    with pytest.raises(RuntimeError, match="deep"):
        observe(model, batches(1), [shared, deep], inputs=fail)
    assert "call" not in {**vars(shared), **vars(deep)}
