"""Chromium without a window, and what a page said and asked for while it was there."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium():
    """Return the path of a browser; without one skip, or fail where CI promises one."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        missing("no Chromium")
    return found


def playwright():
    """Return playwright's entry; without the package skip or fail likewise."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("no playwright")
    return sync_playwright


def axe():
    """Return axe's entry; without the package skip or fail likewise."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("no axe-playwright-python")
    return Axe()


def missing(what):
    if os.environ.get("CI") == "true":
        pytest.fail(f"There is {what} here, and CI is to run the page in a browser.")
    pytest.skip(f"{what}: the page was not driven", allow_module_level=True)


@contextmanager
def opened(browser, path, **options):
    """Open a page; what went wrong on it is an error at the end."""
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}} | options)
    wrong, asked = [], []
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    page.close()
    assert wrong == [], wrong  # pytest looks into asserts of test files alone
    assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
