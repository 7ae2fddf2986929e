"""The page that a run writes: how it was measured, and the tables."""

from tests.benchmarks.peers.table import markdown

PAGE = """# Comparison with other tools

The same networks, weights, images and epochs for every tool, each in its own process:

```console
python -m tests.benchmarks.peers fashion_mnist.npz -o peers.md
```

Measured on {date} with {versions}; {machine}; {samples:,} training images and all
test images, {epochs} epochs, and {more_epochs} more for steps that train. tfmot gets
the network in tf_keras, with copied weights. Tools that are not installed are listed
below the tables; `--python pquantml=PYTHON` uses another environment.

- **bytes**: size of the file without optimizer state. **gzipped**: size of the gzipped
  file. The smaller of the two is compared.
- **in RAM**: weights after loading into Keras; not measured for LiteRT.
- **verdict**: comparison with kerasmem's files of the same job. `.keras` and `.h5` are
  compared with `.keras`, `.tflite` with `.tflite`. Sizes within 1 %, step times within
  5 % and accuracies within half a point are equal.
- `.keras, entropy` and kerasmem's int8 and int4 files open after `import kerasmem`.

{tables}"""


def page(about, rows, networks):
    """Return the page as Markdown.

    Args:
        about: date, versions, machine, samples, epochs and more_epochs of the run.
        rows: of all tools.
        networks: names of the nets.
    """
    versions = ", ".join(f"{name} {is_}" for name, is_ in about["versions"].items())
    tables = markdown(rows, networks)
    return PAGE.format(**{**about, "versions": versions, "tables": tables})
