"""Reports in a real headless Chromium, which `make test-browser` installs; without it these tests are skipped."""

import importlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from egm.report import write_report
from support.conditions import missing
from support.report_cases import SECTIONS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HINT = "`make test-browser` installs it where it can"
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser():
    found = [path for path in map(shutil.which, BROWSERS) if path]
    if not found:
        missing("Chromium", HINT)
    if importlib.util.find_spec("playwright") is None:
        missing("playwright", HINT)
    with importlib.import_module("playwright.sync_api").sync_playwright() as tool:
        chromium = tool.chromium.launch(executable_path=found[0])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(runs, tmp_path_factory, browser):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("reports")
    several = [runs[name] for name in ("mixed", "ising", "chain", "particles")]
    return {
        "one": write_report([runs["ising"]], folder / "one.html", n=100),
        "several": write_report(several, folder / "several.html", n=100),
    }


@pytest.fixture
def visit(browser):
    """Opens a file; errors in the page, and requests that leave it, fail the test at its end."""
    wrong, contexts = [], []

    def opened(file: Path, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda asked: wrong.append(f"asked for {asked.url}") if _leaves(asked.url, file) else None)
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def _leaves(url: str, file: Path) -> bool:
    return url != file.as_uri() and not url.startswith("data:")


@pytest.mark.parametrize("name", ["one", "several"])
def test_it_renders(files, visit, name):
    page = visit(files[name])
    sections = page.locator("h3").all_inner_texts()
    assert sections == (1 if name == "one" else 4) * list(SECTIONS)
    assert page.locator("img").count() > 0
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0 && i.alt)")
    boxes = page.evaluate("[...document.querySelectorAll('svg')].map(s => [s.clientWidth, s.clientHeight])")
    assert len(boxes) >= 8
    assert all(width > 150 and height > 80 for width, height in boxes)
    drawn = page.evaluate(
        "[...document.querySelectorAll('svg')].every(s => s.querySelectorAll('path, use').length > 3)"
    )
    assert drawn


def test_the_policy_lets_no_other_script_run(files, browser, tmp_path):
    """A second defence, in case the escaping misses something."""
    text = files["one"].read_text(encoding="utf-8")
    hostile = tmp_path / "hostile.html"
    inserted = "<script>document.title = 'taken'</script><img src='https://example.invalid/x.png'>"
    hostile.write_text(text.replace("</main>", f"{inserted}</main>"), encoding="utf-8")
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(hostile.as_uri())
    assert page.title() != "taken"
    assert len([text for text in refused if "Content Security Policy" in text]) == 2
    page.close()


def test_tables_sort_by_click_and_by_key(files, visit):
    page = visit(files["several"])
    table = page.locator("table").first

    def column(index):
        return [row.locator("th, td").nth(index).inner_text() for row in table.locator("tbody tr").all()]

    headings = table.locator("thead th")
    names = [text.strip(" ↕↑↓") for text in headings.all_inner_texts()]
    assert headings.first.get_attribute("aria-sort") == "none"
    steps, method = names.index("steps"), names.index("method")
    before = column(method)
    headings.nth(steps).locator("button").click()
    assert headings.nth(steps).get_attribute("aria-sort") == "ascending"
    numbers = [float(text) for text in column(steps)]
    assert numbers == sorted(numbers)
    assert numbers[0] < numbers[-1]
    assert column(method)[-1] == "gibbs"  # whole rows move: chains took the most steps
    page.keyboard.press("Enter")  # the button has the focus
    assert headings.nth(steps).get_attribute("aria-sort") == "descending"
    assert [float(text) for text in column(steps)] == numbers[::-1]
    headings.nth(method).locator("button").focus()
    page.keyboard.press("Space")
    assert headings.nth(steps).get_attribute("aria-sort") == "none"
    assert column(method) == sorted(before)
    ess = names.index("ESS")
    for _ in range(2):
        headings.nth(ess).locator("button").click()
        assert column(ess)[-1] == ""  # runs without weights are last in either direction


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_phone_shows_it_without_scrolling_sideways(files, visit, name):
    page = visit(files[name], viewport=PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    wide = "[...document.querySelectorAll('.scroll')].filter(d => d.scrollWidth > d.clientWidth).length"
    assert (page.evaluate(wide) > 0) == (name == "several")  # wide tables scroll by themselves, others fit
    outside = "[...document.querySelectorAll('h1, h2, h3, p, figure, .verdict, .scroll')]"
    assert page.evaluate(f"{outside}.every(e => e.getBoundingClientRect().right <= {PHONE['width']})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_figures_stand_out_in_either_scheme(files, visit, scheme):
    page = visit(files["one"], color_scheme=scheme)
    luminance = """
        (property, element) => {
            const [r, g, b] = getComputedStyle(element)[property].match(/[\\d.]+/g).map(Number);
            return [r, g, b].map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
                .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
        }"""

    def of(selector, name):
        return page.evaluate(f"([s, p]) => ({luminance})(p, document.querySelector(s))", [selector, name])

    def contrast(one, two):
        return (max(one, two) + 0.05) / (min(one, two) + 0.05)

    paper = of("body", "backgroundColor")
    assert (paper < 0.1) == (scheme == "dark")
    assert contrast(of("body", "color"), paper) > 7  # what WCAG calls AAA
    panel = of("figure", "backgroundColor")
    for selector, name in (
        ("svg text", "fill"),
        ("figcaption", "color"),
        (".note", "color"),
        (".verdict strong", "color"),
    ):
        assert contrast(of(selector, name), panel) > 4.5  # AA
    curve = "[aria-label*='ESS in training'] path[style*='--c1']"
    assert contrast(of(curve, "stroke"), panel) > 3  # AA, of graphics
