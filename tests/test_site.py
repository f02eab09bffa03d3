"""The site of docs/ is built without a warning, and its search works in a browser."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("latex2mathml", reason="the extra docs is not installed")
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Serve the site as any web server does: browsers start no search worker of a file."""
    handler = functools.partial(SilentHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class SilentHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_every_page_is_there_with_its_formulas(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        made = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert made.is_file() or page.name == "README.md", page
    assert "<math" in (site / "strategies" / "bmuf.html").read_text(encoding="utf-8")
    assert "optimizer" in (site / "reference" / "api.html").read_text(encoding="utf-8")
    for made in site.rglob("*.html"):
        assert 'class="arithmatex"' not in made.read_text(encoding="utf-8"), made


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (apt install chromium)")
def test_search_works_and_pages_fit_a_phone(address: str) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page: Any = browser.new_page(viewport={"width": 1280, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address}/index.html")
        page.fill(".md-search__input", "staleness")
        page.wait_for_selector(".md-search-result__item")
        assert page.locator(".md-search-result__item").count() > 2
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for name in ("index", "tutorial", "strategies/easgd", "reference/api"):
                page.goto(f"{address}/{name}.html")
                assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
        browser.close()
