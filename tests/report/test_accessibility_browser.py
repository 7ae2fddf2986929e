"""axe-core finds nothing wrong with our pages: wide and on a phone, light and dark."""

import pytest

from kerasmem.report.compression import write_page
from kerasmem.report.run import write_run_page
from tests.report.browser import axe, chromium, opened, playwright
from tests.report.runs import small_run
from tests.report.test_compression_page_browser import page_of_all

pytestmark = pytest.mark.browser
playwright(), chromium()  # or all of this file is skipped
rules = axe()

OPEN = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
NAMELESS = "document.querySelector('main').append(document.createElement('button'))"
OPTIONS = {"rules": {"target-size": {"enabled": True}}}
"""What a finger must hit is not among axe's rules by default."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accessible")
    write_run_page(small_run(), folder / "run.html")
    write_page(folder / "compression.html", page_of_all())
    return folder


def violations(page):
    found = rules.run(page, options=OPTIONS).response
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("name", ["run", "compression"])
def test_no_rule_is_broken_with_every_table_open(browser, pages, name, width, scheme):
    size = {"width": width, "height": 844}
    path = pages / f"{name}.html"
    with opened(browser, path, viewport=size, color_scheme=scheme) as page:
        page.evaluate(OPEN)
        assert violations(page) == []


def test_a_button_without_a_name_would_be_told(browser, pages):
    with opened(browser, pages / "run.html") as page:
        page.evaluate(NAMELESS)
        assert [name for name, _ in violations(page)] == ["button-name"]
