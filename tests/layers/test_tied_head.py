"""A model made anew keeps the tie of its head to the table."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelError
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy

pytestmark = pytest.mark.one_backend
X = np.arange(12).reshape(2, 6) % 40


def with_a_head(*, nested=False):
    """Return a model of 40 words, 8 wide, with a BatchNormalization."""
    keras.utils.set_random_seed(1)
    table = keras.layers.Embedding(40, 8)
    ids = keras.Input((6,), dtype="int32")
    x = keras.Model(ids, table(ids))(ids) if nested else table(ids)
    x = keras.layers.Dense(16, activation="relu")(x)
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8)(x))
    head = km.layers.ChunkedVocabulary(table, logit_soft_cap=5.0, name="head")
    model = keras.Model(ids, head(x))
    norm = model.layers[-2]
    norm.set_weights([np.linspace(0.5, 2, 8) + i for i in range(4)])
    return model


def tables(model):
    return [x for x in model.variables if x.path.endswith("embeddings")]


def assert_tied(model):
    (table,) = tables(model)
    assert model.layers[-1].embedding.embeddings is table


def test_folding_removes_the_normalization_alone():
    model = with_a_head()
    before = model.count_params()
    answer = model.predict(X, verbose=0)
    folded = km.compress(model, km.FoldBatchNorm()).model
    assert_tied(folded)
    assert folded.count_params() == before - 4 * 8
    assert folded.layers[-1].logit_soft_cap == 5.0
    np.testing.assert_allclose(folded.predict(X, verbose=0), answer, atol=1e-5)
    # One step moves the table that is looked up, which is the head's.
    folded.compile("sgd", km.layers.ChunkedCrossentropy())
    folded.train_on_batch(X, X)
    assert_tied(folded)
    assert np.abs(to_numpy(tables(folded)[0]) - to_numpy(tables(model)[0])).max() > 0


@pytest.mark.parametrize("make", ["prune", "student"])
def test_fewer_channels_leave_the_table_whole(make):
    model = with_a_head()
    if make == "prune":
        small = km.compress(model, km.PruneChannels(0.5), data=X).model
    else:
        small = km.make_student(model, 0.8)
    assert_tied(small)
    assert small.count_params() < model.count_params()
    np.testing.assert_array_equal(
        to_numpy(tables(small)[0]), to_numpy(tables(model)[0])
    )


def test_a_table_within_a_nested_model_is_met_again():
    model = with_a_head(nested=True)
    made = Rebuild(Rewrite()).run(model)
    assert_tied(made)
    assert made.count_params() == model.count_params()
    np.testing.assert_allclose(
        made.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-6
    )


def test_a_head_before_its_table_is_refused_in_one_sentence():
    table = keras.layers.Embedding(40, 8, name="words")
    states = keras.Input((6, 8))
    head = km.layers.ChunkedVocabulary(table, name="head")
    model = keras.Model(states, head(states))
    with pytest.raises(ModelError, match="'head' reads the weights of 'words'"):
        Rebuild(Rewrite()).run(model)


def test_the_backbone_of_a_head_is_there_once():
    hub = pytest.importorskip("keras_hub")
    backbone = hub.models.GPT2Backbone(40, 1, 2, 8, 16, max_sequence_length=6)
    names = ("token_ids", "padding_mask")
    inputs = {name: keras.Input((6,), dtype="int32", name=name) for name in names}
    x = keras.layers.Dense(8)(backbone(inputs))
    x = keras.layers.BatchNormalization()(x)
    model = keras.Model(inputs, km.layers.ChunkedVocabulary(backbone)(x))
    data = {"token_ids": X, "padding_mask": np.ones_like(X)}
    answer = model.predict(data, verbose=0)
    folded = km.compress(model, km.FoldBatchNorm()).model
    assert folded.count_params() == model.count_params() - 4 * 8
    assert len(folded.variables) == len(model.variables) - 4
    (made,) = [x for x in folded.layers if isinstance(x, type(backbone))]
    assert folded.layers[-1].embedding is made.token_embedding
    np.testing.assert_allclose(folded.predict(data, verbose=0), answer, atol=1e-5)
