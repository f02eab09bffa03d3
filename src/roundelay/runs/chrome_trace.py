"""A record as a Chrome trace, which Perfetto and chrome://tracing show on a timeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from roundelay.files import write_text
from roundelay.runs.reader import finite, read_lines
from roundelay.runs.record import KINDS


def write_trace(record: Path, trace: Path) -> None:
    """Write the spans of ``record`` as a trace, one row per learner; times in it are microseconds."""
    rows: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for line in read_lines(record):
        kind, member, time, seconds = (line.get(name) for name in ("event", "member", "time", "seconds"))
        time, seconds = finite(time), finite(seconds)
        if kind not in KINDS or not isinstance(member, str) or time is None or seconds is None:
            continue
        row = rows.setdefault(member, len(rows))
        more = {k: v for k, v in line.items() if k not in ("event", "member", "time", "seconds")}
        # Serving has its own row: a learner serves while it computes.
        thread = 1 if kind == "serve" else 0
        events.append(
            {"name": kind, "ph": "X", "pid": row, "tid": thread, "ts": time * 1e6, "dur": seconds * 1e6, "args": more}
        )
    names = [{"name": "process_name", "ph": "M", "pid": row, "args": {"name": member}} for member, row in rows.items()]
    write_text(trace, json.dumps({"traceEvents": names + events, "displayTimeUnit": "ms"}))
