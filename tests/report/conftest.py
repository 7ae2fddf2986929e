"""The page does not depend on the backend: a browser looks at it under one of them."""

import os

_BROWSER = ["test_run_page_browser.py", "test_compression_page_browser.py"]
collect_ignore = [] if os.environ.get("KERAS_BACKEND") == "jax" else _BROWSER
