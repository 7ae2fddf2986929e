"""How far updates with coded moments are from exact Adam's, over many steps.

Run by hand, half a minute, without Keras:

    python tests/benchmarks/bench_codes.py

4096 gradients whose sizes are spread over two decades; in the second half of the steps
every other one is 100 times smaller, or larger. Moments are coded after every step: by
the tree of Dettmers et al. (2022), to its nearest value; by the curve of
`kerasmem.extras.optimizers.codes` to the nearest; by the same with offsets that move
on. It prints the root mean square of the error of the updates over that of exact ones,
and the largest update, in learning rates.
"""

import numpy as np

ENTRIES, BLOCK, STEPS, TYPICAL = 4096, 256, 1100, 1e-3


def tree(signed):
    values = []
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)
        values += list(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    return np.sort([0, 1, *values, *(-value for value in values if signed)])


SIGNED, UNSIGNED = tree(signed=True), tree(signed=False)


def in_blocks(x):
    x = x.reshape(-1, BLOCK)
    return x, np.abs(x).max(axis=1, keepdims=True) + 1e-38


def nearest(table, x):
    x, scale = in_blocks(x)
    middle = (table[1:] + table[:-1]) / 2
    return (table[np.searchsorted(middle, x / scale)] * scale).ravel()


def by_tree(first, second, step):
    return nearest(SIGNED, first), nearest(UNSIGNED, second)


def by_curve(first, second, offsets):
    first, scale = in_blocks(first)
    places = np.floor(np.sign(first) * 127 * (np.abs(first) / scale) ** 0.25 + offsets)
    root, root_scale = in_blocks(np.sqrt(second))
    root_places = np.floor(256 * np.sqrt(root / root_scale) + offsets)
    root = (np.maximum(root_places, 1) / 256) ** 2 * root_scale
    first = np.sign(places) * (places / 127) ** 4 * scale
    return first.ravel(), (root**2).ravel()


def to_nearest(first, second, step):
    return by_curve(first, second, 0.5)


def by_offsets(first, second, step):
    offsets = ((step + np.arange(BLOCK)) * 633 % 1024 + 0.5) / 1024
    return by_curve(first, second, offsets)


def compare(code, factor):
    rng = np.random.default_rng(0)
    sizes, pull = TYPICAL * np.exp(rng.normal(size=ENTRIES)), rng.normal(size=ENTRIES)
    coded, exact = ([np.zeros(ENTRIES)] * 2 for _ in range(2))
    error = total = largest = 0.0
    for step in range(STEPS):
        if step == STEPS // 2:
            sizes[::2] *= factor
        gradient = sizes * (0.3 * pull + rng.normal(size=ENTRIES))
        rate = np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        updates = []
        for moments in (coded, exact):
            moments[:] = (
                0.9 * moments[0] + 0.1 * gradient,
                0.999 * moments[1] + 0.001 * gradient**2,
            )
            updates.append(rate * moments[0] / (np.sqrt(moments[1]) + 1e-7))
        error += ((updates[0] - updates[1]) ** 2).sum()
        total += (updates[1] ** 2).sum()
        largest = max(largest, np.abs(updates[0]).max())
        coded[:] = code(*coded, step)
    return np.sqrt(error / total), largest


def main():
    for factor in (1, 0.01, 100):
        print(f"every other gradient x{factor} in the second half")
        for code in (by_tree, to_nearest, by_offsets):
            error, largest = compare(code, factor)
            print(f"  {code.__name__:11} error {error:.3f}, largest {largest:.1f}")


if __name__ == "__main__":
    main()
