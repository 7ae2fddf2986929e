"""What every peer is given: images, the nets' weights, and how long to train."""

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FILE = "task.json"


@dataclass(frozen=True)
class Task:
    """A run; its folder holds this as JSON and, for every net, its trained weights."""

    folder: str
    data: str
    samples: int = 10_000
    epochs: int = 5
    more_epochs: int = 2
    networks: tuple[str, ...] = ("dense", "conv")

    def write(self):
        Path(self.folder, FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder):
        return cls(**json.loads(Path(folder, FILE).read_text()))

    def path(self, name):
        return Path(self.folder, name)

    def images(self):
        """Return `x, y` to train on and `x, y` to judge by; x in [0, 1]."""
        return _images(self.data, self.samples)


@functools.cache
def _images(path, samples):
    with np.load(path) as file:
        x, y = (file[name][:samples] for name in ("x_train", "y_train"))
        xt, yt = file["x_test"], file["y_test"]
    x, xt = (images[..., None].astype("float32") / 255 for images in (x, xt))
    return (x, y), (xt, yt)
