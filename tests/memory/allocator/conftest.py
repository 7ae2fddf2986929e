"""The oracle is TensorFlow's allocator, whatever Keras runs on: once is enough."""

import keras

collect_ignore = (
    [] if keras.backend.backend() == "tensorflow" else ["test_bfc_oracle.py"]
)
