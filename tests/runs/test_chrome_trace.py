"""Records as traces for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

from roundelay.runs.chrome_trace import write_trace
from roundelay.runs.record import Record


def test_spans_become_rows_of_learners_in_microseconds(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.jsonl", clock="virtual")
    record.span("compute", "learner 0", 1.0, 1.5, minibatch=3)
    record.span("serve", "learner 0", 1.0, 1.25)
    record.span("wait", "learner 1", 0.0, 2.0)
    record.write("step", "learner 0", 1.5, loss=2.0)
    record.close(2.0)
    with (tmp_path / "record.jsonl").open("ab") as file:
        file.write(b'{"event": "compute", "member": "learner 1", "time": "soon", "seconds": 1}\n{"event": "comp')
    write_trace(tmp_path / "record.jsonl", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "learner 0", 1: "learner 1"}
    spans = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        ("compute", 0, 0, 1e6, 5e5),
        ("serve", 0, 1, 1e6, 2.5e5),
        ("wait", 1, 0, 0.0, 2e6),
    ]
    assert next(e for e in events if e["ph"] == "X")["args"] == {"clock": "virtual", "minibatch": 3}
