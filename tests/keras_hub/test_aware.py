"""Four bits of KerasHub's nets that are trained with the rounding in sight."""

import keras
import pytest

import kerasmem as km
from tests.keras_hub.families import FAMILIES, apart, samples
from tests.masked import called

INT4 = km.Quantize("int4", granularity="group", group_size=16)


@pytest.mark.filterwarnings("ignore:.*compile.* was not called:UserWarning")
def test_four_bits_of_a_task_learn_its_labels_and_keep_them(tmp_path):
    keras.utils.set_random_seed(0)
    model = FAMILIES["Bart"]()
    data = samples(model, 16)
    ids = data["decoder_token_ids"]
    aware = km.quantization_aware(model, INT4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    aware.compile(keras.optimizers.Adam(3e-3), loss, jit_compile=False)
    before = called(model, data)
    history = aware.fit(data, ids, epochs=12, batch_size=16, shuffle=False, verbose=0)
    losses = history.history["loss"]
    assert losses[-1] < losses[0] - 0.1
    assert apart(called(model, data), before) == 0

    small = km.compress(aware, INT4, verbose=0).model
    assert isinstance(small, type(model))
    assert apart(called(small, data), called(aware, data)) < 1e-5
    aware.save(tmp_path / "aware.keras")
    again = km.load_model(tmp_path / "aware.keras")
    assert apart(called(again, data), called(aware, data)) < 1e-6
