"""A model of KerasHub is a graph that can be read, though its config has no layers."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, DataError
from kerasmem.graph.calls import trace
from kerasmem.graph.layers import blocks, has_graph, lists_layers
from kerasmem.memory.fit import plan
from kerasmem.memory.oom.cause import DeviceFigures
from tests.keras_hub.families import FAMILIES, LENGTH, samples, shapes, targets
from tests.masked import called

pytestmark = [
    # Keras says it of a task of KerasHub whenever it loads one.
    pytest.mark.filterwarnings("ignore:.compile\\(\\). was not called"),
    pytest.mark.filterwarnings(
        "ignore:The analytic method assumes that unsupported layers"
    ),
    # T5's blocks have no build of their own.
    pytest.mark.filterwarnings("ignore:(?s).*transformer_.*unbuilt state"),
    pytest.mark.filterwarnings("ignore:(?s).*does not support masking"),
    # A token of DINO's that only its own training needs.
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables.*mask_tok"),
]

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
SOME = ["Gemma", "Llama3", "Mixtral", "Bert", "Bart", "ViT"]


def compiled(model, optimizer="sgd"):
    model.compile(optimizer, "mse", metrics=[], weighted_metrics=[])
    return model


def shapes_of_answers(model, x):
    if keras.backend.backend() != "jax":
        return [y.shape for y in called(model, x)]
    import jax  # it would compile every operation by itself

    told = jax.eval_shape(lambda x: model(x, training=False), x)
    return [y.shape for y in keras.tree.flatten(told)]


@pytest.mark.parametrize("name", [*FAMILIES] if ON_TENSORFLOW else SOME)
def test_its_calls_are_known_with_every_length_and_its_config_lists_no_layer(name):
    model = FAMILIES[name]()
    assert has_graph(model)
    assert not lists_layers(model)
    assert blocks(model) == [model]
    x = samples(model)
    arrays = [x[t.name] for t in model.inputs] if isinstance(x, dict) else [x]
    traced = trace(model, 2, [a.shape for a in arrays], opens=lambda _: True)
    assert all(None not in y.shape for call in traced.calls for y in call.outputs)
    assert [y.shape for y in traced.outputs] == shapes_of_answers(model, x)


def test_another_name_than_those_of_its_inputs_is_refused():
    model = compiled(FAMILIES["Gemma"]())
    given = shapes(model, samples(model))
    given["tokens"] = given.pop("token_ids")
    with pytest.raises(km.errors.ConfigError, match="one per input of"):
        km.estimate_memory(model, 2, input_shape=given)


if ON_TENSORFLOW:  # others know every shape in a step

    @pytest.mark.parametrize("name", ["Bert", "GPT2"])
    def test_a_gradient_of_unknown_shape_is_measured(name):
        import tensorflow as tf

        model = compiled(FAMILIES[name]())
        x = samples(model)
        y = targets(model, x)
        with tf.GradientTape() as tape:
            tensors = keras.tree.map_structure(tf.convert_to_tensor, x)
            loss = tf.reduce_mean(tf.square(model(tensors, training=False) - y))
        dense = map(
            tf.convert_to_tensor, tape.gradient(loss, [*model.trainable_weights])
        )
        squares = sum(float(tf.reduce_sum(tf.square(g))) for g in dense)
        assert LENGTH < 16  # the table of positions is longer than the sequences

        monitor = km.callbacks.GradientMonitor()
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[monitor])
        assert monitor.records[0].norm == pytest.approx(squares**0.5, rel=1e-4)


def keyed():
    """Return a model that is fed by other keys than its inputs' names."""
    words = keras.Input((None,), dtype="int32")
    scale = keras.Input((1,), name="s")
    x = keras.layers.Embedding(40, 8)(words)
    for _ in range(4):
        x = keras.layers.Dense(8, activation="relu")(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    y = keras.layers.Dense(1)(keras.layers.Multiply()([x, scale]))
    return compiled(keras.Model({"words": words, "factor": scale}, y))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_inputs_are_named_as_they_are_fed():
    model = keyed()
    given = {"words": (16,)}
    peaks = [
        km.estimate_memory(
            model, 4, input_shape=given, method=method, device="cpu", jit_compile=False
        ).peak_bytes
        for method in ("analytic", "traced")
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.5)
    lean = km.rematerialize(model, segments=2, input_shape=given)
    again = km.estimate_memory(lean, 4, input_shape=given, method="analytic")
    assert again.peak_bytes > 0
    with pytest.raises(km.errors.ConfigError, match="'factor', 'words'"):
        km.estimate_memory(model, 4, input_shape={"s": (1,)})


def sentences(length, count=6):
    return {"words": np.ones((count, length), "int32"), "factor": np.ones((count, 1))}


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return sentences(16, 3), np.ones((3, 1))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize(
    "form",
    [
        lambda: sentences(16),
        lambda: (sentences(16), np.ones((6, 1))),
        lambda: sentences(16) | {"unused": np.ones((6, 9))},
        Batches,
    ],
    ids=["inputs", "inputs and answers", "one too many", "batches"],
)
def test_open_lengths_are_read_from_example_data(form):
    model = keyed()
    options = {"method": "analytic", "device": "cpu"}
    found = km.estimate_memory(model, 4, data=form(), **options)
    said = km.estimate_memory(model, 4, input_shape={"words": (16,)}, **options)
    assert found == said
    longer = km.estimate_memory(model, 4, data=sentences(32), **options)
    assert longer.peak_bytes > found.peak_bytes


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_a_batch_size_is_found_for_the_lengths_of_example_data():
    model = keyed()
    needed = km.estimate_memory(model, 1, data=sentences(500), device="cpu").low_bytes
    with pytest.raises(ConfigError, match="limit"):
        km.find_batch_size(model, needed // 2, data=sentences(500))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_example_data_is_of_the_model_and_the_only_word_on_lengths():
    model = keyed()
    with pytest.raises(
        ConfigError, match=r"either `input_shape` or `data`. Received: input_shape"
    ):
        km.estimate_memory(model, 4, input_shape=(16,), data=sentences(16))
    with pytest.raises(DataError, match=r"named \['factor', 'words'\]"):
        km.estimate_memory(model, 4, data={"words": np.ones((6, 16))})


def test_inputs_in_a_list_keep_their_names_when_the_model_is_rematerialized():
    tokens = [keras.Input((None,), dtype="int32") for _ in range(2)]  # of no name
    x = keras.layers.Add()([keras.layers.Embedding(40, 8)(t) for t in tokens])
    for _ in range(4):
        x = keras.layers.Dense(8, activation="relu")(x)
    model = compiled(keras.Model(tokens, keras.layers.GlobalMaxPooling1D()(x)))
    given = {tensor.name: (16,) for tensor in model.inputs}
    assert km.rematerialize(model, segments=2, input_shape=given) is not model


if ON_TENSORFLOW:

    @pytest.mark.parametrize("form", ["arrays", "dataset"])
    def test_fit_plans_with_the_lengths_of_its_batches(form, monkeypatch):
        import tensorflow as tf

        # What other tests have left in memory leaves no room in so low a limit.
        monkeypatch.setattr(plan, "figures_of", DeviceFigures)

        model = compiled(FAMILIES["Bert"](), "adam")
        x = samples(model, 64)
        y = targets(model, x)
        given = shapes(model, x)
        whole, half = (
            km.estimate_memory(
                model, size, input_shape=given, device="cpu", method="analytic"
            ).peak_bytes
            for size in (64, 32)
        )
        limit = (whole + half) // 2
        data = {"x": x, "y": y, "batch_size": 64}
        if form == "dataset":
            data = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(64)}
        with pytest.warns(km.errors.KerasMemWarning, match="is trained (in|by)"):
            km.fit(model, **data, memory_limit=limit, verbose=0, shuffle=False)
