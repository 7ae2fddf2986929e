"""A training to take pictures of; `kerasmem run` watches it."""

import keras

from kerasmem.demo.recipe import compile_classifier, load_demo_data, residual_network

WIDTHS = (8, 16, 32)
"""Channels of a network that is small enough for a quarter of a minute."""

if __name__ == "__main__":
    (x, y), (x_test, y_test) = load_demo_data()
    keras.utils.set_random_seed(0)
    model = compile_classifier(residual_network(x.shape[1:], 10, WIDTHS, 0.1), 3e-3)
    validation = (x_test[:500], y_test[:500])
    model.fit(x[:4000], y[:4000], batch_size=128, epochs=8, validation_data=validation)
    model.save("model.keras")
