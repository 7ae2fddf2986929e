"""Search in a built site, opened as files: `python -m tests.site.search_offline SITE`.

Nothing is asked over the network: the browser has none.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.report.browser import chromium

WORD, PAGE = "rematerialize", "rematerializing.html"


def hits(site: Path, word: str) -> list[str]:
    """Return the addresses that the search of a site in a folder finds."""
    with sync_playwright() as api:
        browser = api.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.context.set_offline(True)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site.resolve() / "index.html").as_uri())
        page.locator("input[name='query']").click()
        page.keyboard.type(word)
        found = page.locator(".md-search-result__link")
        found.first.wait_for(timeout=30_000)
        urls = found.evaluate_all("links => links.map((link) => link.href)")
        browser.close()
    assert all(url.startswith(("file:", "data:", "blob:", "about:")) for url in asked)
    return urls


if __name__ == "__main__":
    found = hits(Path(sys.argv[1]), WORD)
    assert any(PAGE in url for url in found), found
