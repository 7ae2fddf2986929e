"""Random Keras models of about 150 kinds of operations, and the laws they go through."""
