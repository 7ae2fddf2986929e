"""The list of planted faults, and a copy of the repository with one of them."""

import shutil
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("kerasmem", "tests", "docs", "examples", "README.md", "pyproject.toml")


@dataclass(frozen=True)
class Fault:
    """A small change of one file of kerasmem.

    Args:
        name: Name in `faults.toml`.
        file: Path below `kerasmem`.
        old: Text that occurs once in the file.
        new: Text in its place.
        breaks: What goes wrong for a user.
        tests: Files or folders with a test that fails with the fault.
        backend: Backend to run the tests on.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]
    backend: str = "tensorflow"

    def planted(self, root: Path = ROOT) -> str:
        """Return the file with the fault.

        Raises:
            ValueError: if the old text does not occur exactly once.
        """
        text = (root / "kerasmem" / self.file).read_text()
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"Expected the old text once in {self.file}. Received: {count} times "
                f"{self.old!r}. Next: write the fault {self.name!r} in "
                "tests/planted/faults.toml anew."
            )
        return text.replace(self.old, self.new)


def faults() -> list[Fault]:
    """Return all faults in the order of the file."""
    table = tomllib.loads(Path(__file__).with_name("faults.toml").read_text())
    return [Fault(name, **fields) for name, fields in table.items()]


def plant(fault: Fault, folder: Path) -> None:
    """Copy the repository to a new folder and plant a fault in the copy."""
    text = fault.planted()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in _COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignore)
        else:
            shutil.copy2(source, target)
    (folder / "kerasmem" / fault.file).write_text(text)
