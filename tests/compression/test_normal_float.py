"""NF4 against the levels of its paper and an independent coder."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.normal_float import levels
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError
from kerasmem.graph.clone import clone
from kerasmem.graph.kernels import is_kernel, reduced_axes
from kerasmem.graph.layers import weights
from kerasmem.graph.values import nbytes, to_numpy
from tests.models import KINDS, in_place

# Appendix E of the paper.
PUBLISHED = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)
GROUPS = {"granularity": "group", "group_size": 4}


def nearest(kernel, axes, size):
    """An independent NF4, group by group."""
    kept = [axis for axis in range(kernel.ndim) if axis not in axes]
    channels = kernel.transpose(*kept, *axes)
    flat = channels.reshape(-1, int(np.prod([kernel.shape[a] for a in axes])))
    step = -(-flat.shape[1] // -(-flat.shape[1] // size))
    found = np.empty_like(flat)
    for row, new in zip(flat, found, strict=True):
        for i in range(0, len(row), step):
            part = row[i : i + step]
            largest = np.abs(part).max() or 1
            apart = np.abs(part[:, None] / largest - np.array(PUBLISHED))
            new[i : i + step] = np.array(PUBLISHED)[apart.argmin(1)] * largest
    return found.reshape(channels.shape).transpose(np.argsort([*kept, *axes]))


@pytest.mark.one_backend
def test_levels_are_those_of_the_paper():
    np.testing.assert_allclose(np.sort(levels()), PUBLISHED, atol=1e-6)
    assert levels()[0] == 0


@pytest.mark.parametrize(
    "name", ["dense", "einsum_dense", "conv1d", "recurrent", "tied_embedding"]
)
def test_layers_compute_with_the_nearest_levels_and_are_saved(name, tmp_path):
    kind = KINDS[name]
    model, inputs = kind.make(), kind.inputs()
    small, reference = clone(model), clone(model)
    for weight in filter(is_kernel, weights(reference)):
        kernel = to_numpy(weight.variable)
        weight.variable.assign(nearest(kernel, reduced_axes(weight), 4))
    in_place(km.Quantize("nf4", **GROUPS), small)
    expected = to_numpy(reference(inputs, training=False))
    found = to_numpy(small(inputs, training=False))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    km.save_model(small, tmp_path / "m.keras")
    again = km.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(to_numpy(again(inputs, training=False)), found)
    assert {v.coding.dtype for v in quantized_variables(again)} == {"nf4"}
    floats = km.dequantize(again)
    np.testing.assert_allclose(
        to_numpy(floats(inputs, training=False)), found, rtol=1e-5, atol=1e-6
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("granularity", ["channel", "tensor", "group"])
def test_a_file_is_made_of_a_file_as_in_memory(granularity, tmp_path):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((40,))
    hidden = keras.layers.Dense(33, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(7)(hidden))
    kernel = to_numpy(model.layers[1].kernel).copy()
    kernel[np.abs(kernel) < 0.1] = 0
    model.layers[1].kernel.assign(kernel)
    km.save_model(model, tmp_path / "float.keras")
    step = km.Quantize("nf4", granularity=granularity)
    in_memory = km.compress(model, step)
    from_file = km.compress(tmp_path / "float.keras", step, output=tmp_path / "b.keras")
    there = km.load_model(tmp_path / "b.keras")
    for a, b in zip(in_memory.model.weights, there.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    ratios = [
        [c.sqnr_db for c in x.changes if c.changed] for x in (in_memory, from_file)
    ]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)
    (first, _) = quantized_variables(in_memory.model)
    assert np.all(to_numpy(first.plain())[kernel == 0] == 0)


@pytest.mark.one_backend
def test_normal_weights_lose_less_than_in_int4_of_the_same_size():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((512,))
    layer = keras.layers.Dense(64, kernel_initializer="random_normal")
    model = keras.Model(inputs, layer(inputs))
    lost = {}
    for scheme in ("int4", "nf4"):
        step = km.Quantize(scheme, granularity="group", group_size=64)
        result = km.compress(model, step)
        (change,) = (c for c in result.changes if c.changed)
        lost[scheme] = change.sqnr_db, sum(map(nbytes, result.model.weights))
    assert lost["nf4"][1] == lost["int4"][1]
    assert lost["nf4"][0] > lost["int4"][0] + 0.5


@pytest.mark.one_backend
@pytest.mark.parametrize(
    "more",
    [{"symmetric": False}, {"rounding": "gptq"}, {"scales": "mse"}, {"scales": "awq"}],
)
def test_what_needs_even_steps_is_refused(more):
    with pytest.raises(ConfigError, match=next(iter(more))):
        km.Quantize("nf4", **more)


@pytest.mark.one_backend
def test_a_training_of_the_codes_is_refused():
    model = KINDS["dense"].make()
    with pytest.raises(ConfigError, match="LoRA"):
        km.quantization_aware(model, km.Quantize("nf4"))
