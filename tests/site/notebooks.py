"""A hook of MkDocs: each notebook is a page, its outputs as they are kept."""

import base64
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook, which can be downloaded from it."""
    for file in [*files]:
        if file.src_uri.endswith(".ipynb"):
            path = Path(config.docs_dir, file.src_uri)
            page = file.src_uri.removesuffix(".ipynb") + ".md"
            files.append(File.generated(config, page, content=markdown(path)))
    return files


def markdown(path: Path) -> str:
    """Return a notebook as the text of a page."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, *parts = [part for cell in cells for part in _cell(cell)]
    link = f"[This notebook]({path.name}){{: download }}"
    return "\n\n".join([title, link, *parts]) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        if "text" in output:
            yield f"```text\n{''.join(output['text']).rstrip()}\n```"
        else:
            yield _shown({k: "".join(v) for k, v in output["data"].items()})


def _shown(data: dict[str, str]) -> str:
    words = data["text/plain"]
    if "image/svg+xml" not in data:
        return f"```text\n{words}\n```"
    picture = base64.b64encode(data["image/svg+xml"].encode()).decode()
    said = html.escape(words, quote=True)
    return f'<img alt="{said}" src="data:image/svg+xml;base64,{picture}">'
