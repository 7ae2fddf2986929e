"""A Keras model as layers, weights and nodes."""
