"""What an experiment tracker has to do for us."""

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kerasmem.errors import ConfigError
from kerasmem.records import Scalar


class Tracker(ABC):
    """A place that takes the series of a run, and files.

    Args:
        target: where it goes: a folder, an experiment, a project.
        name: of the run.
    """

    package: ClassVar[str | None] = None
    """What has to be installed, and the extra of kerasmem that brings it."""

    @abstractmethod
    def __init__(self, target: str, name: str) -> None: ...

    @abstractmethod
    def log_scalars(self, scalars: Sequence[Scalar], process: int) -> None:
        """Log points of series, each at its step.

        Args:
            scalars: the points.
            process: index of the process that they are of.
        """

    @abstractmethod
    def log_artifact(self, path: Path) -> None:
        """Log a file beside the series; what shows no files passes it over."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """End what this tracker has begun.

        Args:
            complete: whether everything was logged.
        """

    @classmethod
    def check(cls) -> None:
        """Raise unless the tracker's package is installed.

        Raises:
            ConfigError: if it is not.
        """
        if cls.package is None:
            return
        spec = importlib.util.find_spec(cls.package)
        # W&B leaves a folder of its own name, which Python takes for a package.
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"A run is logged by the package {cls.package}. Expected: it is "
                f"installed (pip install kerasmem[{cls.package}]). Received: no module "
                f"{cls.package!r}."
            )

    @classmethod
    def library(cls) -> Any:
        """Return the tracker's package.

        Raises:
            ConfigError: if it is not installed.
        """
        cls.check()
        return importlib.import_module(str(cls.package))


def of_process(tag: str, process: int) -> str:
    """Return the name of a series of one process, where all lie in one run."""
    return f"process-{process}/{tag}" if process else tag
