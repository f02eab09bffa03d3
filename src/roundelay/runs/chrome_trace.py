"""A record as a Chrome trace, which Perfetto and chrome://tracing show on a timeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roundelay.errors import DataError
from roundelay.files import write_text
from roundelay.runs.record import KINDS

__all__ = ["read_record", "write_trace"]


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a record; a last line that was cut off in writing is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                read = json.loads(line)
            except (ValueError, RecursionError):  # not JSON, or not UTF-8
                read = None
            if not isinstance(read, dict):
                raise DataError(f"{path}:{number}: not a line of a record, which is a JSON object")
            yield read


def write_trace(record: Path, trace: Path) -> None:
    """Write the spans of ``record`` as a trace, one row a learner; times in it are microseconds."""
    rows: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for line in read_record(record):
        if line["event"] not in KINDS or "seconds" not in line:
            continue
        row = rows.setdefault(line["member"], len(rows))
        more = {k: v for k, v in line.items() if k not in ("event", "member", "time", "seconds")}
        # Serving has a row of its own: it goes on while the same learner computes.
        thread = 1 if line["event"] == "serve" else 0
        events.append(
            {"name": line["event"], "ph": "X", "pid": row, "tid": thread, "ts": line["time"] * 1e6,
             "dur": line["seconds"] * 1e6, "args": more}
        )  # fmt: skip
    names = [{"name": "process_name", "ph": "M", "pid": row, "args": {"name": member}} for member, row in rows.items()]
    write_text(trace, json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
