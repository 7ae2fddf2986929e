"""Analysis and rewriting of Keras models as layers, weights and graphs."""
