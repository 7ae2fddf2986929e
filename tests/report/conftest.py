"""The page does not depend on the backend: a browser looks at it under one of them."""

import os

collect_ignore = (
    [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_run_page_browser.py"]
)
