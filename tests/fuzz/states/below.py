"""All paths of a folder that a call may create."""

from pathlib import Path


class Below(set[Path]):
    """The folder and every path below it.

    Args:
        folder: The folder, which need not exist.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __contains__(self, path: object) -> bool:
        return isinstance(path, Path) and path.is_relative_to(self._folder)
