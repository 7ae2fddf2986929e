"""The page that a run writes: how it was measured, and the tables."""

from tests.benchmarks.peers.table import markdown

PAGE = """# Beside other tools

What a user would pick instead of kerasmem, on the same nets, with the same weights,
images and epochs, every tool in a process of its own:

```console
python -m tests.benchmarks.peers fashion_mnist.npz -o peers.md
```

Measured on {date} with {versions}; {machine}; {samples:,} images to train on and all
test images to judge by, {epochs} epochs, and {more_epochs} more for every step
that trains. tfmot has the net in tf_keras, with the weights copied. A tool that is
not installed is named below the tables; `--python pquantml=PYTHON` takes one from
another environment.

- **bytes** are those of the file, without the optimizer's state, **gzipped** those of
  the same file gzipped. A file counts with the smaller of the two, as if all were
  shipped gzipped where that helps.
- **in RAM** are the weights once loaded into Keras; of LiteRT's files they are not
  measured.
- **verdict** compares with kerasmem's files of the same job: `.keras` and `.h5` with
  `.keras`, `.tflite` with `.tflite`. Files and weights within 1 % are equal, step times
  within 5 %, accuracies within half a point.
- `.keras, entropy`, and kerasmem's files of int8 and int4, open after
  `import kerasmem`.

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
