"""Random Keras models of about 170 kinds of operations, and what must hold of them."""
