"""Write the golden histories anew: of all strategies, or of those named on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from histories import FOLDER, history
from roundelay.strategies import STRATEGIES

if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(STRATEGIES):
        (FOLDER / f"{name}.json").write_text(json.dumps(history(name), indent=1) + "\n", encoding="utf-8")
