"""Run the scripts and write the notebooks: `python -m tests.notebooks [NAME ...]`."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.notebooks import NOTEBOOKS, ROOT, SCRIPTS, notebook, text_of


def main() -> None:
    names = sys.argv[1:] or sorted(script.stem for script in SCRIPTS.glob("*.py"))
    if len(names) > 1:
        for name in names:  # each in a process of its own, as a kernel would be
            subprocess.run([sys.executable, "-m", "tests.notebooks", name], check=True)
        return
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ["PYTHONPATH"] = str(ROOT)
    target = NOTEBOOKS / f"{names[0]}.ipynb"
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        content = text_of(notebook(SCRIPTS / f"{names[0]}.py"))
        os.chdir(ROOT)
    Path(target).write_text(content, encoding="utf-8")
    print(f"{target.name}: {len(content) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
