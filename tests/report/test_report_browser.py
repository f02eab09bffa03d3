"""The report in a real browser: it opens, zooms, filters, sorts, and complains of nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from report_files import HOSTILE, write_run
from roundelay.report.report_writer import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = sync_api.expect
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)"),
]
Scheme = Literal["light", "dark"]
SETTLED = """async () => {
  const places = () => [scrollY, ...[...document.querySelectorAll("figure")].map((f) => f.offsetTop)].join();
  for (let last = "", still = 0; still < 5; ) {
    await new Promise(requestAnimationFrame);
    still = places() === last ? still + 1 : 0;
    last = places();
  }
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Root in a container has no sandbox; the page is our own.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


class Visit:
    """A page that is open, and all that it said on the console or asked the network for."""

    def __init__(self, browser: Any, page: Path, *, width: int = 1280, scheme: Scheme = "light") -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",  # what is pointed at must not glide away
        )
        self.page: Any = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(page.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def figure(self, name: str) -> Any:
        """Scroll to a figure and wait until it is drawn."""
        figure = self.page.locator(f"#figure-{name}")
        figure.scroll_into_view_if_needed()
        figure.locator("svg.panel, canvas").first.wait_for()
        self.settle()  # while its neighbours are drawn, it may move
        figure.scroll_into_view_if_needed()
        self.settle()
        return figure

    def settle(self) -> None:
        """Wait until nothing has changed its place for a while."""
        self.page.evaluate(SETTLED)

    def look_at_all(self) -> None:
        """Scroll through the whole page, and wait until every figure is drawn."""
        for figure in self.page.locator("figure").all():
            figure.scroll_into_view_if_needed()
            expect(figure.locator("svg.panel, canvas, .nothing").first).to_be_attached()

    def close(self) -> None:
        self.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_zooms_and_filters_without_a_complaint(browser: Any, report: Path, width: int, scheme: Scheme) -> None:
    visit = Visit(browser, report, width=width, scheme=scheme)
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(dark.split("(")[1].split(",")[0]) < 100) == (scheme == "dark")

    figure = visit.figure("loss-frames")
    panel = figure.locator("svg.panel").first
    ticks = panel.locator(".tick.middle")
    before = ticks.all_text_contents()
    box = panel.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5, steps=4)
    page.mouse.up()
    expect(ticks).not_to_have_text(before)
    figure.get_by_role("button", name="Show all again").click()
    expect(ticks).to_have_text(before)

    curves = figure.locator("g.series[data-strategy=bmuf]")
    expect(curves).not_to_have_count(0)
    page.locator("#filter-strategies .chip[data-value=bmuf]").click()
    visit.figure("loss-frames")
    expect(curves).to_have_count(0)
    expect(figure.locator("g.series[data-strategy=adpsgd]")).not_to_have_count(0)
    rows = page.locator("#table-results-virtual tbody tr")
    expect(rows.filter(has_text="bmuf").first).to_be_hidden()
    expect(rows.filter(has_text="adpsgd").first).to_be_visible()
    page.locator("#all-strategies").click()
    expect(rows.filter(has_text="bmuf").first).to_be_visible()

    visit.look_at_all()
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    visit.close()


def test_the_timeline_goes_by_keys(browser: Any, report: Path) -> None:
    visit = Visit(browser, report)
    figure = visit.figure("timeline")
    frame = figure.locator(".frame")

    def shown() -> list[float]:
        return [float(end) for end in figure.locator("canvas").get_attribute("data-range").split()]

    begin, end = shown()
    frame.focus()
    visit.page.keyboard.press("+")
    low, high = shown()
    assert begin < low < high < end
    visit.page.keyboard.press("ArrowRight")
    assert shown()[0] > low
    assert shown()[1] - shown()[0] == pytest.approx(high - low)
    visit.page.keyboard.press("0")
    assert shown() == [begin, end]
    label = figure.locator("canvas").get_attribute("aria-label")
    visit.page.locator("#run").select_option("bmuf-4")
    expect(figure.locator("canvas")).not_to_have_attribute("aria-label", label)
    expect(visit.figure("shares-learner").locator("text.name")).to_have_text([f"learner {n}" for n in range(4)])
    assert visit.complaints == []
    visit.close()


def test_a_table_is_sorted_and_a_figure_told_in_numbers(browser: Any, report: Path) -> None:
    visit = Visit(browser, report)
    table = visit.page.locator("#table-results-virtual")
    heading = table.locator("th", has_text="held-out loss")
    heading.locator("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    place = table.locator("thead th").all_text_contents().index("held-out loss")
    values = table.locator(f"tbody tr :nth-child({place + 1})").evaluate_all(
        "cells => cells.map(c => +c.dataset.value)"
    )
    assert values == sorted(values)
    assert len(values) > 4
    figure = visit.figure("error")
    figure.locator("details.numbers summary").click()
    figure.locator("details.numbers tbody tr").nth(4).wait_for()
    assert visit.complaints == []
    visit.close()


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "\u2215")
    write_run(tmp_path / "runs" / name, HOSTILE, 2)
    write_run(tmp_path / "runs" / "other", "bmuf", 2)
    visit = Visit(browser, write_report(tmp_path / "runs", tmp_path / "out"))
    visit.figure("loss-frames")
    visit.figure("timeline")
    assert HOSTILE in visit.page.locator("#filter-strategies").inner_text()
    assert visit.page.locator("img").count() == 0
    assert visit.complaints == []
    visit.close()


def test_a_foreign_script_would_not_run(browser: Any, report: Path, tmp_path: Path) -> None:
    page = tmp_path / "changed.html"
    page.write_text(
        report.read_text(encoding="utf-8").replace("</main>", "<script>document.title = 'x'</script></main>")
    )
    visit = Visit(browser, page)
    assert visit.page.title() != "x"
    assert any("Content Security Policy" in complaint for complaint in visit.complaints)
    visit.close()


def test_printing_draws_every_figure(browser: Any, report: Path) -> None:
    visit = Visit(browser, report)
    visit.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    empty = "figures => figures.filter(f => !f.querySelector('svg.panel, canvas, .nothing')).map(f => f.id)"
    assert visit.page.locator("figure").evaluate_all(empty) == []
    assert visit.complaints == []
    visit.close()
