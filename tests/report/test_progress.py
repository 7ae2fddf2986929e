"""Progress is seen on a terminal, is plain lines elsewhere, and costs no step."""

import io

import keras
import numpy as np
import pytest
from rich.console import Console

from kerasmem.report.progress import FitProgress

X, Y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")


def fit(callbacks):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    return model.fit(X, Y, batch_size=2, epochs=2, callbacks=callbacks, verbose=0)


def test_without_a_terminal_every_epoch_is_one_line():
    text = io.StringIO()
    history = fit([FitProgress("training", Console(file=text, width=20))]).history
    assert text.getvalue().splitlines() == [
        f"training, epoch {epoch}/2: loss {loss:.4g}"
        for epoch, loss in enumerate(history["loss"], start=1)
    ]


def test_on_a_terminal_every_epoch_ends_with_a_full_bar_and_its_figures():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=150)
    history = fit([FitProgress("training", console)]).history
    last = text.getvalue().rpartition("training, epoch 2/2")[2]
    assert "4/4" in last
    assert f"loss {history['loss'][-1]:.4g}" in last


def test_batches_that_come_out_of_order_do_not_move_the_bar_back():
    text = io.StringIO()
    with FitProgress("training", Console(file=text, force_terminal=True)) as progress:
        progress.set_params({"epochs": 1, "steps": 4})
        progress.on_train_begin()
        progress.on_epoch_begin(0)
        for batch in (0, 3, 2, 1):
            progress.on_train_batch_end(batch)
        progress.on_epoch_end(0, {"loss": 0.5})
    assert "4/4" in text.getvalue().rpartition("epoch 1/1")[2]


def test_an_exception_leaves_the_terminal_in_order():
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise ZeroDivisionError

    def interrupted():
        with FitProgress("training", console) as progress:
            fit([progress, Stop()])

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=150)
    with pytest.raises(ZeroDivisionError):
        interrupted()
    hide_cursor, show_cursor = "\x1b[?25l", "\x1b[?25h"
    assert text.getvalue().rindex(show_cursor) > text.getvalue().rindex(hide_cursor)


def test_an_epoch_of_unknown_length_ends_with_a_full_bar():
    text = io.StringIO()
    progress = FitProgress(
        "training", Console(file=text, force_terminal=True, width=99)
    )
    progress.set_params({"epochs": 1, "steps": None})
    progress.on_train_begin()
    progress.on_epoch_begin(0)
    progress.on_train_batch_end(2)
    progress.on_epoch_end(0, {})
    progress.on_train_end()
    assert "3/3" in text.getvalue()


def test_it_does_not_make_jax_wait_for_a_batch():
    assert FitProgress.async_safe
