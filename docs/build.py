"""Check that every relative link in a page leads somewhere; the site itself is built by mkdocs (``make docs``).

python docs/build.py --check
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def broken_links() -> list[str]:
    """Return every relative link that leads nowhere."""
    found = []
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if path and "://" not in path and not path.startswith("mailto:") and not (page.parent / path).exists():
                found.append(f"{page.relative_to(ROOT)}: {target} leads nowhere")
    return found


def main() -> int:
    wrong = broken_links()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
