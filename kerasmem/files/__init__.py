"""Files of models and data: loading, and saving in full or not at all."""

from kerasmem.files.contents import inspect_file
from kerasmem.files.load import load_model
from kerasmem.files.save import save_model

__all__ = ["inspect_file", "load_model", "save_model"]
