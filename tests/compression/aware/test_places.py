"""Where a forward pass of integers rounds its tensors."""

import keras
import pytest

from kerasmem.compression.quantize.aware.places import places
from kerasmem.compression.quantize.fold import fold_batch_norm
from tests.compression.aware.nets import called_in_training, in_order, network
from tests.models import L


def test_places_are_where_integers_are():
    found = {at: place.tensor for at, place in places(network()).items()}
    add = next(name for name in found.values() if name.startswith("add"))
    same = {name: name for name in ("picture", "relu", "side", "head")}
    assert found == {**same, "pool": add}


def sharing():
    inputs = keras.Input((8, 8, 3), name="picture")
    conv = L.Conv2D(3, 3, padding="same", name="c")
    x = L.BatchNormalization(name="norm")(conv(conv(inputs)))
    return keras.Model(inputs, x)


def taken_up_twice():
    norms = L.BatchNormalization(name="first"), L.BatchNormalization(name="norm")
    return in_order(L.Conv2D(4, 3, name="c"), *norms)


def without_reason_to_fold():
    """Return a model whose BatchNormalization is along another axis."""
    return in_order(L.Conv2D(4, 3, name="c"), L.BatchNormalization(1, name="norm"))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (called_in_training, {"c": (), "norm": ()}),
        (sharing, {"c": (), "c:1": (), "norm": ()}),
        (taken_up_twice, {"norm": ("c",)}),
        (without_reason_to_fold, {"c": (), "norm": ()}),
    ],
)
def test_what_folding_takes_up_is_rounded_behind_it_and_no_other(make, expected):
    model = make()
    found = {at: place.others for at, place in places(model).items()}
    assert found == {"picture": (), **expected}
    is_folded = fold_batch_norm(model)[0] is not model
    assert is_folded == (("c",) in expected.values())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([L.GlobalAveragePooling2D(name="mean"), L.ReLU(name="relu")], "mean relu"),
        ([L.Conv2D(4, 3, name="c"), L.ReLU(name="relu")], "relu"),
        ([L.Conv2D(4, 3, name="c"), L.ReLU(3, name="other")], "c other"),
        ([L.Conv2D(4, 3, activation="tanh", name="c"), L.ReLU(name="r")], "c r"),
        ([L.Rescaling(2.0, name="scaled"), L.ReLU(name="relu")], "relu"),
        ([L.SeparableConv2D(4, 3, name="s"), L.ReLU(name="r")], "s/depthwise r"),
    ],
)
def test_a_rectifier_is_one_with_what_integers_run_it_with(layers, expected):
    assert list(places(in_order(*layers))) == ["picture", *expected.split()]
