"""A run as an event file of TensorBoard."""

import time
from collections.abc import Sequence
from pathlib import Path

from kerasmem.backends.tensorflow_files import write_events
from kerasmem.errors import OutputError
from kerasmem.extras.trackers.tracker import Tracker
from kerasmem.files.atomic import replacing
from kerasmem.records import Scalar


class TensorBoardTracker(Tracker):
    """Writes event files; TensorFlow alone does so, without the viewer.

    Args:
        target: folder, made if it is not there.
        name: of the run, which the folder's own takes the place of.
    """

    def __init__(self, target: str, name: str) -> None:  # noqa: ARG002
        self._folder = Path(target)

    def log_scalars(self, scalars: Sequence[Scalar], process: int) -> None:
        """Write one file: of the first process into the folder, else one below.

        Raises:
            OutputError: if it cannot be written.
        """
        folder = self._folder / f"process-{process}" if process else self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"There can be no folder {str(folder)!r}: {error.strerror or error}."
            ) from error
        file = folder / f"events.out.tfevents.{int(time.time())}.kerasmem"
        with replacing(file) as temporary:
            write_events(temporary, scalars)

    def log_artifact(self, path: Path) -> None:
        """Pass it over: TensorBoard shows no files."""

    def close(self, *, complete: bool) -> None:
        """Do nothing: every file is whole."""
