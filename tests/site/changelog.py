"""A hook of MkDocs: the page of changes is the repository's CHANGELOG.md."""

from pathlib import Path
from typing import Any

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page's text; that of changes with links as the site has them."""
    if page.file.src_uri != "changelog.md":
        return markdown
    return CHANGELOG.read_text().replace("](docs/", "](")
