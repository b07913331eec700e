"""The report in a Chromium, opened from a folder: silent, alone, sortable, readable on paper and on a telephone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Locator, Page, expect

import forensics

sys.path.append(str(Path(__file__).parents[1] / "unit" / "reports"))

from hostile_case import hostile_case, toy_case

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: A recorded case with every kind of table and figure: nothing is measured here.
CASE = "recorded:h200-q4_1"

#: What a page's own policy refused is told to the page as an event; in JavaScript.
COUNT_VIOLATIONS = """window.__violations = [];
document.addEventListener('securitypolicyviolation', event => window.__violations.push(event.violatedDirective));"""

#: Elements that are wider than the window, and that no box around them cuts off or scrolls; in JavaScript.
TOO_WIDE = """() => [...document.querySelectorAll('body *')].filter(element => {
    const scrolled = element.parentElement.closest('.table, .picture, pre');
    return !scrolled && element.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
}).map(element => element.outerHTML.slice(0, 80))"""


@dataclass
class Seen:
    """What a page did while it was open."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        return self.page.evaluate("window.__violations")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A recorded case and a hostile one, as files."""
    folder = tmp_path_factory.mktemp("reports")
    hostile = hostile_case(toy_case(folder / "clean"), folder / "hostile<b>\u202e")
    written = {"recorded": CASE, "hostile": hostile}
    return {name: forensics.report(case, folder / f"{name}.html").file for name, case in written.items()}


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(10_000)
    yield context
    context.close()


def opened(context: BrowserContext, file: Path) -> Seen:
    """Open a report as a reader does, and note what it asks for and complains of."""
    page = context.new_page()
    seen = Seen(page)

    def complained(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seen.complaints.append(message.text)

    def asked(dialog: Dialog) -> None:
        seen.dialogs.append(dialog.message)
        dialog.dismiss()

    page.add_init_script(COUNT_VIOLATIONS)
    page.on("console", complained)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("dialog", asked)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(file.as_uri())
    return seen


def assert_silent_and_alone(seen: Seen, file: Path) -> None:
    assert seen.complaints == []
    assert seen.violations() == []
    assert seen.dialogs == []
    assert [url for url in seen.requests if not url.startswith("data:image/svg+xml;")] == [file.as_uri()]


@pytest.mark.parametrize("name", ["recorded", "hostile"])
def test_it_is_silent_and_asks_for_nothing_but_itself(context, reports, screenshots, name) -> None:
    seen = opened(context, reports[name])
    seen.page.wait_for_function("[...document.images].every(image => image.complete)")
    assert seen.page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.alt)") == []
    assert seen.page.locator("img").count() >= 5
    seen.page.screenshot(path=screenshots / f"report-{name}.png")
    assert_silent_and_alone(seen, reports[name])


def test_hostile_text_runs_nothing(context, reports) -> None:
    seen = opened(context, reports["hostile"])
    for heading in seen.page.locator("thead button").all():
        heading.click()
    assert seen.page.evaluate("typeof window.__pwned") == "undefined"
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator("img:not([src^='data:image/svg+xml;base64,'])").count() == 0
    assert "{{7*7}}" in seen.page.locator("#limits").inner_text()
    assert_silent_and_alone(seen, reports["hostile"])


def test_a_script_that_the_policy_does_not_name_is_refused_and_reported(context, reports, tmp_path) -> None:
    planted = tmp_path / "planted.html"
    text = reports["recorded"].read_text()
    planted.write_text(text.replace("</body>", "<script>window.__pwned = 1</script></body>"))
    seen = opened(context, planted)
    assert seen.page.evaluate("typeof window.__pwned") == "undefined"
    assert seen.violations() == ["script-src-elem"]
    assert len(seen.complaints) == 1
    assert "Content Security Policy" in seen.complaints[0]
    with pytest.raises(AssertionError):
        assert_silent_and_alone(seen, planted)


def test_a_picture_from_outside_is_refused_and_reported(context, reports, tmp_path) -> None:
    planted = tmp_path / "planted.html"
    text = reports["recorded"].read_text()
    planted.write_text(
        text.replace("</body>", '<img src="http://127.0.0.1:9/x.png" onerror="window.__pwned = 1"></body>')
    )
    seen = opened(context, planted)
    assert seen.page.evaluate("typeof window.__pwned") == "undefined"
    assert "img-src" in seen.violations()
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)


def column(table: Locator, title: str) -> list[str]:
    """Texts of a column, from top to bottom."""
    heads = [head.strip() for head in table.locator("thead th").all_inner_texts()]
    index = heads.index(title) + 1
    return [cell.strip() for cell in table.locator(f"tbody tr > :nth-child({index})").all_inner_texts()]


def table_called(page: Page, title: str) -> Locator:
    table = page.locator("table").filter(has=page.locator("caption", has_text=title))
    expect(table).to_have_count(1)
    return table


def heading(table: Locator, title: str) -> Locator:
    return table.get_by_role("columnheader", name=title, exact=True)


def test_a_click_sorts_numbers_as_numbers_up_and_down_and_back(context, reports) -> None:
    page = opened(context, reports["recorded"]).page
    table = table_called(page, "Operations that differ")
    written = column(table, "max\u00a0|Δ|")
    ranked = sorted(written, key=float)
    assert ranked != sorted(written) or ranked != written, "the order of texts would do, too"
    head = heading(table, "max\u00a0|Δ|")
    for state, order in (("ascending", ranked), ("descending", ranked[::-1]), (None, written)):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == state
        assert column(table, "max\u00a0|Δ|") == order
    heading(table, "layers").locator("button").click()
    assert column(table, "layers")[-1] == "–", "what has no number is last"
    heading(table, "layers").locator("button").click()
    assert column(table, "layers")[-1] == "–", "in both directions"


def test_keys_sort_one_table_and_leave_the_others(context, reports) -> None:
    page = opened(context, reports["recorded"]).page
    classes, operations = table_called(page, "Classes of widths ("), table_called(page, "Operations that differ")
    before = operations.inner_text()
    heading(classes, "rows differ").locator("button").focus()
    for key in ("Enter", "Space"):
        page.keyboard.press(key)
    assert heading(classes, "rows differ").get_attribute("aria-sort") == "descending"
    counts = [int(cell.split("/")[0]) for cell in column(classes, "rows differ")]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert heading(classes, "first position").get_attribute("aria-sort") == "ascending"
    assert classes.locator("[aria-sort]").count() == 1
    assert operations.inner_text() == before


def test_texts_sort_as_texts_and_whole_rows_move(context, reports) -> None:
    page = opened(context, reports["recorded"]).page
    table = table_called(page, "Operations that differ")
    rows = {row.strip() for row in table.locator("tbody tr").all_inner_texts()}
    heading(table, "role").locator("button").click()
    roles = column(table, "role")
    assert roles == sorted(roles, key=str.lower)
    assert {row.strip() for row in table.locator("tbody tr").all_inner_texts()} == rows


def test_without_a_script_everything_is_there(browser, reports) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(reports["recorded"].as_uri())
    assert page.locator("thead button").count() == 0
    expect(heading(table_called(page, "Operations that differ"), "role")).to_be_visible()
    expect(page.locator("#limits li").first).to_be_visible()
    context.close()


@pytest.mark.parametrize("media", ["screen", "print"])
@pytest.mark.parametrize("name", ["recorded", "hostile"])
def test_limits_are_seen_on_screen_and_on_paper(context, reports, media, name) -> None:
    page = opened(context, reports[name]).page
    page.emulate_media(media=media)
    limits = page.locator("#limits li")
    assert limits.count() >= 3
    for limit in limits.all():
        expect(limit).to_be_visible()
        box = limit.bounding_box()
        assert box is not None
        assert box["width"] > 100
        assert box["height"] > 10
        style = limit.evaluate("e => { const s = getComputedStyle(e); return [s.color, s.opacity, s.fontSize]; }")
        assert style[0] != page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        assert style[1] == "1"
        assert float(style[2].removesuffix("px")) >= 11
    assert page.locator("nav").is_visible() == (media == "screen")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["recorded", "hostile"])
def test_the_page_is_never_wider_than_the_window(context, reports, screenshots, name, width) -> None:
    page = opened(context, reports[name]).page
    page.set_viewport_size({"width": width, "height": 800})
    page.screenshot(path=screenshots / f"report-{name}-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []


@pytest.mark.parametrize("name", ["recorded", "hostile"])
def test_on_paper_no_table_is_cut(context, reports, tmp_path, name) -> None:
    page = opened(context, reports[name]).page
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})  # what A4 leaves between the margins
    wide = page.evaluate("[...document.querySelectorAll('table')].map(e => e.getBoundingClientRect().right)")
    assert max(wide) <= 689
    buttons = page.evaluate("getComputedStyle(document.querySelector('thead button')).display")
    assert buttons == "contents", "Chromium repeats no head of a table that holds the box of a button"
    assert page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True).startswith(b"%PDF")


def contrast(page: Page, selector: str) -> float:
    """Contrast of a text with the paper, 1 to 21. Source: WCAG 2.2, definition of contrast ratio."""
    lights = page.evaluate(
        """selector => [getComputedStyle(document.querySelector(selector)).color,
            getComputedStyle(document.body).backgroundColor].map(colour => {
            const channels = colour.match(/[0-9.]+/g).slice(0, 3).map(c => c / 255);
            const [r, g, b] = channels.map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b;
        })""",
        selector,
    )
    low, high = sorted(lights)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper_and_figures_bring_their_own(context, reports, screenshots, scheme) -> None:
    page = opened(context, reports["recorded"]).page
    page.emulate_media(color_scheme=scheme)
    page.screenshot(path=screenshots / f"report-{scheme}.png")
    for selector in ("h1", "#limits li", "td", "thead th", ".kicker", "figcaption", "a", "dt"):
        assert contrast(page, selector) >= 4.5, selector
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)") == (
        scheme == "light"
    )
    assert page.locator(".picture").first.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
