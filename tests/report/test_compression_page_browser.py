"""The page of a compression in a real browser: tables, phone and paper."""

import pytest

from kerasmem.records import ModelFigures, WeightChange
from kerasmem.report.compression import Page, write_page
from tests.report.browser import chromium, opened, playwright
from tests.report.runs import EVIL
from tests.report.test_search import REPORT

pytestmark = pytest.mark.browser
playwright(), chromium()  # or all of this file is skipped

MODELS = {
    name: ModelFigures(size, size, size // 4, size // 8, metrics={"accuracy": 0.5})
    for name, size in {"original": 8192, "compressed": 2048, "student": 1024}.items()
}
CHANGES = tuple(
    WeightChange(
        name, f"{name}/kernel", "quantize", True, f"int8 {EVIL}", before, 64, ratio
    )
    for name, before, ratio in (("b", 999, 50.5), ("a", 2048, 9.5), ("c", 1024, 48.0))
)


def page_of_all():
    """A page with every part that one of a compression may have."""
    return Page("small", MODELS, CHANGES, search=REPORT)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("compression") / "page.html"
    write_page(path, page_of_all())
    return path


@pytest.fixture
def page(browser, path):
    with opened(browser, path) as page:
        yield page


def weights(page):
    rows = page.locator("[aria-labelledby='weights'] tbody tr")
    return [text.split("\t")[0].replace("\n", "") for text in rows.all_inner_texts()]


def test_a_table_sorts_by_what_its_figures_are_worth(page):
    page.locator("summary").filter(has_text="changed").click()
    assert weights(page) == ["b/kernel", "a/kernel", "c/kernel"]
    heads = page.locator("[aria-labelledby='weights'] th[scope='col']")
    for name, order in (
        ("before", "acb"),  # 2 KiB, 1 KiB, 999 B
        ("before", "bca"),
        ("signal to noise", "bca"),
        ("weight", "abc"),
    ):
        heads.filter(has_text=name).get_by_role("button").click()
        assert "".join(text[0] for text in weights(page)) == order
    page.keyboard.press("Enter")
    assert "".join(text[0] for text in weights(page)) == "cba"
    assert heads.first.get_attribute("aria-sort") == "descending"
    assert page.locator("[aria-labelledby='figures'] th button").count() == 0
    assert page.locator("img").count() == 0


def test_the_theme_is_the_systems_until_the_reader_changes_it(browser, path):
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, path, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Light theme").click()
        assert page.evaluate(ground) != dark


def test_on_a_phone_nothing_is_cut(browser, path):
    with opened(browser, path, viewport={"width": 390, "height": 844}) as page:
        page.evaluate(
            "document.querySelectorAll('details').forEach((d) => { d.open = true; })"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_print_has_every_table_open_and_is_light(browser, path):
    with opened(browser, path, color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert page.locator("#theme").is_hidden()
        assert page.locator("[aria-labelledby='weights'] th").first.inner_text()
