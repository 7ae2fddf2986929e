"""What a user would pick instead of kerasmem, measured beside it in one run.

    python -m tests.benchmarks.peers fashion_mnist.npz -o peers.md

A dense and a convolutional net are trained once in Keras 3. Every tool gets the same
weights, images and epochs, in a process of its own, and hands back what one would ship:
bytes of the file and its accuracy on the test images. A tool that fails or is not
installed is a row that says so. `tests/benchmarks/peers/<tool>.py` has its jobs.
"""
