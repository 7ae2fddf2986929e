"""The page does not depend on the backend: a browser looks at it under one of them."""

import os

import pytest

from tests.report.browser import chromium, playwright

_BROWSER = [
    "test_accessibility_browser.py",
    "test_compression_page_browser.py",
    "test_run_page_browser.py",
]
collect_ignore = [] if os.environ.get("KERAS_BACKEND") == "jax" else _BROWSER


@pytest.fixture(scope="module")
def browser():
    """Chromium, which opens the pages of one file of tests."""
    with playwright()() as api:
        # Inside of a container there is no other sandbox, and nothing else is opened.
        options = {"executable_path": chromium(), "args": ["--no-sandbox"]}
        running = api.chromium.launch(**options)
        yield running
        running.close()
