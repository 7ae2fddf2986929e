"""Adam in 8 bits and Adafactor, written anew in NumPy and float64."""

import numpy as np


def offsets(step, entries):
    places = (step + np.arange(entries)) * 633 % 1024
    return (places + 0.5) / 1024


class Adam8bitInNumPy:
    """Trains one array; holds its moments in `codes`, as bytes and scales."""

    def __init__(self, value, rate, block_size, betas=(0.9, 0.999), epsilon=1e-7):
        self.value = value.astype("float64")
        self.rate, self.block_size, self.epsilon = rate, block_size, epsilon
        self.betas, self.step = betas, 0
        blocks = -(-value.size // block_size)
        self.codes = [np.full((blocks, block_size), code) for code in (128, 0)]
        self.scales = [np.zeros((blocks, 1))] * 2

    def update(self, gradient):
        padded = np.zeros(self.codes[0].shape)
        padded.flat[: gradient.size] = gradient.ravel()
        places = self.codes[0] - 128.0
        first = np.sign(places) * (places / 127) ** 4 * self.scales[0]
        second = (((self.codes[1] + 1.0) / 256) ** 2 * self.scales[1]) ** 2
        first = self.betas[0] * first + (1 - self.betas[0]) * padded
        second = self.betas[1] * second + (1 - self.betas[1]) * padded**2
        self._keep(first, np.sqrt(second))
        self.step += 1
        unbiased = first / (1 - self.betas[0] ** self.step)
        root = np.sqrt(second / (1 - self.betas[1] ** self.step))
        # Keras's epsilon is that of the paper's Section 2: added before the correction.
        epsilon = self.epsilon / np.sqrt(1 - self.betas[1] ** self.step)
        change = self.rate * unbiased / (root + epsilon)
        self.value -= change.ravel()[: gradient.size].reshape(gradient.shape)

    def _keep(self, first, root):
        up = offsets(self.step, self.block_size)
        self.scales = [np.abs(x).max(1, keepdims=True) for x in (first, root)]
        shares = [
            np.divide(np.abs(x), scale, out=np.zeros(x.shape), where=scale > 0)
            for x, scale in zip((first, root), self.scales, strict=True)
        ]
        places = np.sign(first) * 127 * shares[0] ** 0.25
        self.codes = [
            np.floor(places + up) + 128,
            np.maximum(np.floor(256 * np.sqrt(shares[1]) - 1 + up), 0),
        ]


def adafactor_step(value, gradient, second, step, *, rate=1e-3, threshold=1.0):
    """Return the new value and the new second moment (a dict), all of a matrix.

    The paper's Algorithm 4: `second` has the row and column means so far.
    """
    kept = 1 - step**-0.8
    squares = gradient.astype("float64") ** 2 + 1e-30
    rows = kept * second["rows"] + (1 - kept) * squares.mean(1)
    columns = kept * second["columns"] + (1 - kept) * squares.mean(0)
    update = gradient / np.sqrt(np.outer(rows, columns) / rows.mean())
    update /= max(1.0, np.sqrt((update**2).mean()) / threshold)
    size = max(1e-3, np.sqrt((value.astype("float64") ** 2).mean()))
    changed = value - size * min(rate, step**-0.5) * update
    return changed, {"rows": rows, "columns": columns}
