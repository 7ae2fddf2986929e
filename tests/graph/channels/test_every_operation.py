"""One model for every operation whose channels are known."""

import keras
import pytest

from kerasmem.compression.channels import PruneChannels
from kerasmem.compression.channels.apply import prune_channels
from tests.graph.channels.strategies import ANY, SHAPES, L, randomize

CASES = [
    (kind, name)
    for kind, (_, own) in SHAPES.items()
    for name in own
    if kind != "tokens" and name not in ANY
] + [("sequence", name) for name in ANY if name != "unknown"]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_channels_next_to_an_operation_go_and_the_rest_computes_the_same(kind, name):
    shape, own = SHAPES[kind]
    numbers = iter([3, 2, 2, 2, 2, 2])

    def number(low, high):
        return min(max(next(numbers), low), high)

    inputs = keras.Input(shape)
    x = (own | ANY)[name](L.Dense(6)(inputs), number, lambda names: max(names, key=str))
    x = L.Flatten()(L.Dense(4)(x))
    model = keras.Model(inputs, L.Dense(2)(x))
    randomize(model)
    found = prune_channels(model, PruneChannels(0.5, criterion="random"))
    assert found.error <= 1e-4
    assert found.unknown == {}
    assert found.model.count_params() < model.count_params()
