"""The page of a compression in a real browser: charts, tables, phone and paper."""

import pytest

from kerasmem.records import ModelFigures, WeightChange
from kerasmem.report.compression import Page, write_page
from tests.report.browser import chromium, opened, playwright
from tests.report.runs import EVIL, gradient_records, memory_records
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
    memory, gradients = memory_records(4), gradient_records(4, 2)
    return Page(
        "small",
        MODELS,
        CHANGES,
        memory,
        gradients,
        search=REPORT,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("compression") / "page.html"
    write_page(path, page_of_all())
    return path


@pytest.fixture
def page(browser, path):
    with opened(browser, path) as page:
        yield page


def tooltip(page):
    return page.locator(".tooltip").inner_text().split("\n")


def weights(page):
    rows = page.locator("[aria-labelledby='weights'] tbody tr")
    return [text.split("\t")[0].replace("\n", "") for text in rows.all_inner_texts()]


def test_a_trial_tells_of_itself_under_the_pointer_and_to_the_keyboard(page):
    chart = page.locator("#search-chart")
    chart.scroll_into_view_if_needed()
    chart.locator(".dot.taken").first.hover()
    assert tooltip(page)[0] == "prune, int8"
    assert "+0.0020 ± 0.0010" in tooltip(page)
    assert chart.locator(".ring").count() == 1
    chart.focus()
    page.keyboard.press("End")
    assert tooltip(page)[0] == "unchanged"  # the largest stands to the right
    page.keyboard.press("ArrowLeft")
    said = page.get_by_role("status").inner_text()
    assert said.startswith("int8: file_bytes 2.50 KiB")
    page.keyboard.press("Escape")
    assert page.locator(".tooltip").is_hidden()


def test_points_lie_where_their_numbers_are(page):
    centers = page.locator("#search-chart svg circle.dot").evaluate_all(
        "dots => dots.slice(0, 3).map((dot) => [dot.cx.baseVal.value, "
        "dot.cy.baseVal.value])"
    )
    (x_int8, y_int8), (x_all, y_all), (x_taken, y_taken) = centers
    # On a logarithmic axis 0.75 to 1.25 is as far as 1.25 to 1.25 / 0.6.
    share = (x_int8 - x_taken) / (x_all - x_taken)
    assert share == pytest.approx(0.3052, abs=1e-3)  # log(1.25 / 0.75) / log(4 / 0.75)
    assert (y_taken - y_all) / (y_int8 - y_all) == pytest.approx(0.002 / 0.03, abs=1e-3)
    bounds = page.locator("#search-chart .bound")
    assert bounds.count() == 2  # the limit, and the largest drop allowed
    height = bounds.nth(1).evaluate("line => line.y1.baseVal.value")
    assert (height - y_all) / (y_int8 - y_all) == pytest.approx(0.01 / 0.03, abs=1e-3)


def test_bars_are_as_long_as_their_numbers(page):
    chart = page.locator("#layers-chart")
    widths = chart.locator("rect").evaluate_all(
        "all => all.map((r) => r.width.baseVal.value)"
    )
    assert widths == pytest.approx(
        [widths[0] * size / 2048 for size in (2048, 64, 1024, 64, 999, 64)], rel=1e-4
    )
    chart.focus()
    page.keyboard.press("ArrowRight")
    said = page.get_by_role("status").inner_text()
    assert said == "a: before 2.00 KiB, after 64 B, 3.1 %"
    assert chart.locator("rect.row").count() == 1
    chart.locator("rect.dot").last.hover()
    assert tooltip(page)[0] == "b"


def test_lines_tell_their_numbers(page):
    page.locator("[data-panel='0']").focus()
    page.keyboard.press("End")
    said = page.get_by_role("status").inner_text()
    assert said.startswith("epoch 4: peak 156 MiB, in use 8.00 MiB")


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
        for name in page.locator("#search-chart svg text").all():
            box = name.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390


def test_a_print_has_every_table_open_and_is_light(browser, path):
    with opened(browser, path, color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert page.locator("#theme").is_hidden()
        assert page.locator("[aria-labelledby='weights'] th").first.inner_text()
