"""Turn the pages of docs/ into HTML, or only check that every link leads somewhere.

python docs/build.py build/docs
python docs/build.py --check
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
STYLE = """
body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.55 system-ui, sans-serif; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: .4rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid #8886; padding: .25rem .6rem; text-align: left; }
:root { color-scheme: light dark; }
"""


def broken_links() -> list[str]:
    """Return every relative link that leads nowhere."""
    found = []
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if path and "://" not in path and not path.startswith("mailto:") and not (page.parent / path).exists():
                found.append(f"{page.relative_to(ROOT)}: {target} leads nowhere")
    return found


def build(out: Path) -> None:
    """Write one HTML page for each page, and an index of all."""
    renderer = MarkdownIt("commonmark").enable("table")
    for page in PAGES:
        place = out / page.relative_to(ROOT).with_suffix(".html")
        place.parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text(encoding="utf-8")
        title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), page.stem)
        body = re.sub(r'href="([^":]+)\.md(#[^"]*)?"', r'href="\1.html\2"', renderer.render(text))
        place.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>{body}</html>\n',
            encoding="utf-8",
        )
    print(f"{len(PAGES)} pages in {out}; begin with {out / 'README.html'}")


def main() -> int:
    wrong = broken_links()
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong and sys.argv[1:] != ["--check"]:
        build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
