"""What is told of layers of KerasHub that have no `get_config`."""

import keras
import pytest

from kerasmem.graph import full_configs as module
from kerasmem.graph.full_configs import full_configs

pytestmark = pytest.mark.one_backend
POLICY = keras.DTypePolicy("float32")


class Kept(keras.layers.Layer):
    """Keeps every argument under its name."""

    __module__ = "keras_hub.tests"

    def __init__(self, sizes=(1, 2), flag=True, rate=0.5, text=None, **kwargs):
        super().__init__(**kwargs)
        self.sizes, self.flag, self.rate, self.text = sizes, flag, rate, text


class Renamed(keras.layers.Layer):
    """Keeps an argument under another name."""

    __module__ = "keras_hub.tests"

    def __init__(self, units, rope_theta=10.0, **kwargs):
        super().__init__(**kwargs)
        self.units, self.theta = units, rope_theta


class OfLayer(keras.layers.Layer):
    """Keeps an argument that is no plain value."""

    __module__ = "keras_hub.tests"

    def __init__(self, units, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.units, self.inner = units, inner


def test_lists_tuples_flags_and_none_are_told():
    other = {"flag": False, "rate": None, "text": "x"}
    layer = Kept([3, (4, None)], **other, dtype=POLICY)
    with pytest.raises(NotImplementedError):
        layer.get_config()
    with full_configs([layer]):
        again = Kept.from_config(layer.get_config())
    assert list(again.sizes) == [3, (4, None)]
    assert (again.flag, again.rate, again.text) == (False, None, "x")
    with pytest.raises(NotImplementedError):
        layer.get_config()


@pytest.mark.parametrize("kind", [Renamed, OfLayer])
def test_nothing_is_told_where_one_argument_cannot_be(kind):
    other = {"rope_theta": 7.0} if kind is Renamed else {"inner": keras.layers.ReLU()}
    layer = kind(4, dtype=POLICY, **other)
    with full_configs([layer]), pytest.raises(NotImplementedError):
        layer.get_config()


def test_experts_that_rename_their_activation_are_refused():
    experts = pytest.importorskip("keras_hub.src.models.qwen_moe.qwen_moe_decoder")
    layer = experts.QwenMoeExperts(2, 4, 4, activation_fn="relu", dtype=POLICY)
    with full_configs([layer]), pytest.raises(NotImplementedError):
        layer.get_config()


def test_layers_are_as_before_where_one_cannot_be_read(monkeypatch):
    layers = [Kept(text=text, dtype=POLICY) for text in ("a", "b", "broken")]
    told = module._arguments_of

    def arguments(layer):
        if layer.text == "broken":
            raise ValueError(layer.text)
        return told(layer)

    monkeypatch.setattr(module, "_arguments_of", arguments)
    with pytest.raises(ValueError, match="broken"), full_configs(layers):
        pass
    assert [layer._auto_config for layer in layers] == [None] * 3
