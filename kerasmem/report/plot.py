"""A still picture for notebooks and papers, readable on white and on black."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerasmem.errors import OutputError
from kerasmem.files.atomic import replacing

TEXT = "#797979"
"""As far from white as from the ground of a dark notebook: 4.3 to 1."""

COLORS = {
    "blue": "#3b7dd8",
    "orange": "#c8741a",
    "green": "#2f9463",
    "purple": "#a25fc0",
    "teal": "#2a8f9c",
    "red": "#d04a4a",
    "gray": "#8a8a8a",
}
"""Of lines and bars: at least 3 to 1 on either ground."""

_LOOK: dict[Any, Any] = {
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.titlesize": "medium",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "savefig.transparent": True,
    "svg.fonttype": "none",  # letters stay letters, and the file small
    "svg.hashsalt": "kerasmem",  # the same picture is the same file
    "text.color": TEXT,
    "text.parse_math": False,  # a name of the user's is no formula
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


class Plot:
    """A still picture: a notebook shows it, `save` writes it.

    Args:
        figure: a `matplotlib.figure.Figure`.
        words: what it shows, for those who cannot see it.

    Attributes:
        figure: the figure, to change before it is shown.

    Example:
        >>> from matplotlib.figure import Figure
        >>> Plot(Figure(), "nothing yet")
        <Plot: nothing yet>
    """

    def __init__(self, figure: Any, words: str) -> None:
        self.figure, self._words = figure, words

    def __repr__(self) -> str:
        return f"<Plot: {self._words}>"

    def _repr_svg_(self) -> str:
        """Return the picture for a notebook."""
        return self._drawn("svg").decode()

    def save(self, path: str | Path) -> None:
        """Write the picture, whole or not at all.

        Args:
            path: of the file; its ending says the format: `.svg`, `.png`, `.pdf`.

        Raises:
            OutputError: if it cannot be written, or there is no such format.
        """
        path = Path(path)
        formats = self.figure.canvas.get_supported_filetypes()
        if path.suffix[1:] not in formats:
            raise OutputError(
                f"A picture ends in one of {', '.join(sorted(formats))}. Received: "
                f"path={str(path)!r}."
            )
        content = self._drawn(path.suffix[1:])
        with replacing(path) as temporary:
            temporary.write_bytes(content)

    def _drawn(self, form: str) -> bytes:
        import matplotlib as mpl

        file = io.BytesIO()
        title = {"Title": self._words}
        undated = {"Date": None} if form == "svg" else {}
        known = title | undated if form in {"svg", "pdf", "png"} else {}
        with mpl.rc_context(_LOOK):
            self.figure.savefig(file, format=form, metadata=known, dpi=160)
        return file.getvalue()


@contextmanager
def drawing(rows: int, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """Return a scope with a figure and its axes, one above the other, in our look.

    Args:
        rows: number of axes.
        height: of the figure, in inches; its width is 7.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=(7, height), layout="constrained")
        axes = figure.subplots(rows, squeeze=False)[:, 0]
        yield figure, list(axes)
