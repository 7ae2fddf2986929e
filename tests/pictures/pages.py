"""The pages that pictures are taken of, made by the commands of a user."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from kerasmem.demo.recipe import load_demo_data

TRAINING = Path(__file__).with_name("train.py")
ROOT = Path(__file__).parents[2]
STYLE = """
:root { color-scheme: light dark; }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere;
  font: 16px/1.5 system-ui, sans-serif; }
img { max-width: 100%; }
table { display: block; overflow: auto; border-collapse: collapse; }
th, td { border: 1px solid #8886; padding: .35rem .75rem; overflow-wrap: normal; }
pre { overflow: auto; padding: 1rem; background: #8882; font-size: 85%; }
code { font-family: ui-monospace, monospace; font-size: 90%; }
"""
"""A page as code hosts show it: their width, their tables, either theme."""


def kerasmem(*arguments: str | Path, folder: Path) -> None:
    """Run a command of kerasmem in `folder`, TensorFlow behind it."""
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "kerasmem", *map(str, arguments)]
    subprocess.run(command, cwd=folder, env=environment, check=True)


def trained(folder: Path) -> Path:
    """Return the model of the watched training; the run is recorded beside it."""
    model = folder / "model.keras"
    if not model.exists():
        run = ("run", "--timeline", "--log-dir", "fashion_mnist", TRAINING)
        kerasmem(*run, folder=folder)
    return model


def run_page(folder: Path) -> Path:
    """Return the page of a watched training."""
    trained(folder)
    kerasmem("report", "fashion_mnist", "-o", "run.html", folder=folder)
    return folder / "run.html"


def compression_page(folder: Path) -> Path:
    """Return the page of a compression of the trained model."""
    model = trained(folder)
    steps = ("--prune", "0.5", "--quantize", "int8", "--data", data(folder).name)
    out = ("-o", "small.keras", "--report", "compression.html")
    kerasmem("compress", model.name, *steps, *out, folder=folder)
    return folder / "compression.html"


def distillation_page(folder: Path) -> Path:
    """Return the page of a distillation of the trained model."""
    model = trained(folder)
    how = ("--student-ratio", "0.5", "--data", data(folder).name, "--epochs", "4")
    out = ("-o", "student.keras", "--report", "distillation.html")
    kerasmem("distill", model.name, *how, *out, folder=folder)
    return folder / "distillation.html"


def data(folder: Path) -> Path:
    """Return the file of what the model was trained on."""
    path = folder / "data.npz"
    if not path.exists():
        (x, y), (x_test, y_test) = load_demo_data()
        np.savez(path, x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return path


def site_page(folder: Path) -> Path:
    """Return the first page of the site; it takes `pip install -e '.[docs]'`."""
    site = folder / "site"
    if not site.exists():
        command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", site]
        subprocess.run(command, cwd=ROOT, check=True)
    return site / "index.html"


def notebook_page(folder: Path) -> Path:
    """Return the site's page of a notebook."""
    return site_page(folder).parent / "notebooks" / "watch.html"


def readme_page(folder: Path) -> Path:
    """Return the README as a page; it takes `pip install -e '.[docs]'`."""
    import markdown

    text = (ROOT / "README.md").read_text()
    body = markdown.markdown(text, extensions=["tables", "fenced_code"])
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images")
    page = folder / "readme.html"
    head = '<meta name="viewport" content="width=device-width">'
    page.write_text(f"<!DOCTYPE html>{head}<style>{STYLE}</style>{body}")
    return page
