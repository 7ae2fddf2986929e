"""Progress is seen on a terminal and is plain lines elsewhere."""

import keras
import numpy as np

from kerasmem.report.progress import FitProgress

X, Y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")


def fit(callbacks):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model.fit(X, Y, batch_size=2, epochs=2, callbacks=callbacks, verbose=0)


def test_without_a_terminal_every_epoch_has_one_line_of_figures(capsys):
    history = fit([FitProgress()]).history
    lines = capsys.readouterr().out.splitlines()
    assert lines[::2] == ["Epoch 1/2", "Epoch 2/2"]
    for line, loss in zip(lines[1::2], history["loss"], strict=True):
        assert line.startswith("4/4 - ")
        assert f"loss: {loss:.4f}" in line


def test_on_a_terminal_every_epoch_ends_with_a_full_bar_and_its_figures(
    capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    history = fit([FitProgress()]).history
    last = capsys.readouterr().out.rpartition("Epoch 2/2")[2]
    assert "4/4" in last
    assert "\u2501" in last
    assert f"loss: {history['loss'][-1]:.4f}" in last
