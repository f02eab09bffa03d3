"""Write into docs/how-to/ports.md how each port in examples/ differs from its plain twin in examples/plain/.

python tools/port_diffs.py
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "how-to" / "ports.md"
BLOCK = re.compile(r"(<!-- diff (\w+) -->\n```diff\n).*?(```\n)", re.DOTALL)


def difference(name: str) -> str:
    """Return the lines of a port that are not those of its plain twin, with one line around each."""
    plain, port = (
        (ROOT / "examples" / folder / f"{name}.py").read_text(encoding="utf-8").splitlines(keepends=True)
        for folder in ("plain", ".")
    )
    lines = list(difflib.unified_diff(plain, port, n=1))[2:]
    return "".join("@@\n" if line.startswith("@@") else line for line in lines)


def renewed(text: str) -> str:
    """Return the page with every difference as it is now."""
    return BLOCK.sub(lambda found: found[1] + difference(found[2]) + found[3], text)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
