"""One line of the table: a file that a tool made of a net."""

import gzip
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """What a tool makes of a net in one job; without an accuracy, why it does not."""

    network: str
    job: str
    tool: str = ""
    form: str = ""
    file_bytes: int | None = None
    gzip_bytes: int | None = None
    weight_bytes: int | None = None
    accuracy: float | None = None
    step_ms: float | None = None
    note: str = ""

    @property
    def shipped_bytes(self):
        """The bytes of the file, as it is or gzipped, whichever is less."""
        return min(self.file_bytes, self.gzip_bytes)

    @property
    def family(self):
        """Who opens the file: a verdict compares like with like."""
        return "LiteRT" if self.form.startswith(".tflite") else "Keras"


def sizes(path):
    """Return the bytes of a file, as fields of a row."""
    content = Path(path).read_bytes()
    return {
        "file_bytes": len(content),
        "gzip_bytes": len(gzip.compress(content, 9, mtime=0)),
    }
