"""Make tables of the results of `faults.py`; write them into docs/explanation/reliability.md between two marks."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
TOLERANCE = 0.15  # of the loss undisturbed; every other run ends with fewer learners, hence more and smaller steps
Result = dict[str, Any]


def write(results: Sequence[Result], path: Path) -> None:
    """Write the tables between the two marks of the page."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n\n{render(results)}\n\n{END}{after}", encoding="utf-8")


def render(results: Sequence[Result]) -> str:
    """Return all tables for which there are results."""
    parts: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        parts[result["part"]].append(result)
    made = [make(parts) for make in (_kills, _seconds, _silences, _stops, _schedules, _cycles)]
    return "\n\n".join(table for table in made if table)


def _by_strategy(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[result["strategy"]].append(result)
    return dict(sorted(found.items()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def _milliseconds(values: Sequence[float | None]) -> str:
    found = [1000 * value for value in values if value is not None]
    return f"{statistics.median(found):.0f} ({max(found):.0f})" if found else "-"


def _went_wrong(results: Sequence[Result]) -> str:
    wrong = [result for result in results if not result["ok"]]
    return f"{len(wrong)}" if wrong else "0"


def _again(results: Sequence[Result]) -> str:
    return str(max((result["most"] for result in results if "most" in result), default="-"))


def _ratios(results: Sequence[Result], calm: Sequence[Result]) -> str:
    """Compare losses with those of undisturbed runs of the same length."""
    ratios = []
    for result in results:
        same = [
            each["loss"] for each in calm if each.get("minibatches") == result.get("minibatches") and "loss" in each
        ]
        if same and result.get("loss") is not None:
            ratios.append(result["loss"] / statistics.mean(same))
    if not ratios:
        return "-"
    beyond = sum(abs(ratio - 1) > TOLERANCE for ratio in ratios)
    return f"{min(ratios):.2f} to {max(ratios):.2f}" + (f", {beyond} beyond" if beyond else "")


def _kills(parts: dict[str, list[Result]]) -> str:
    calm, rows = _by_strategy(parts["undisturbed"]), []
    for strategy, results in _by_strategy(parts["kill"]).items():
        told = [result for result in results if "stall" in result]
        seen = [result for result in told if result["noticed"]]  # not before the first step, nor after the last
        roles = sorted({role for result in told for role in result["victims"]} - {"learner"})
        rows.append([
            strategy, str(len(results)), _went_wrong(results), _milliseconds([result["stall"] for result in seen]),
            _milliseconds([result.get("before") for result in seen]),
            _milliseconds([result["joined"] for result in told]), _milliseconds([result["pause"] for result in told]),
            _again(told), _ratios(told, calm.get(strategy, [])), ", ".join(roles) or "-",
        ])  # fmt: skip
    if not rows:
        return ""
    every = [result for result in parts["kill"] if result.get("noticed")]
    head = (
        "strategy", "kills", "failed", "survivors' stall, ms", "longest gap before it, ms", "back after, ms",
        "pause for that, ms", "trained at most", "loss / undisturbed", "victims besides learners",
    )  # fmt: skip
    stall, before = (_milliseconds([result.get(name) for result in every]) for name in ("stall", "before"))
    missing, failed = sum(r.get("missing", 0) for r in parts["kill"]), _went_wrong(parts["kill"])
    summary = (
        f"All {len(parts['kill'])} kills together: a stall of {stall} ms; the longest gap between two steps before the "
        f"kill was {before} ms; {failed} failed, {missing} minibatches missing.  Medians, and the worst in brackets."
    )
    return f"### A killed learner, noticed by the launcher\n\n{_table(head, rows)}\n\n{summary}"


def _short(part: str, title: str, head: Sequence[str]) -> Callable[[dict[str, list[Result]]], str]:
    def make(parts: dict[str, list[Result]]) -> str:
        calm, rows = _by_strategy(parts["undisturbed"]), []
        for strategy, results in _by_strategy(parts[part]).items():
            told = [result for result in results if result.get("noticed")]
            stalls, before = (_milliseconds([result.get(name) for result in told]) for name in ("stall", "before"))
            ratios = _ratios(told, calm.get(strategy, []))
            rows.append([strategy, str(len(results)), _went_wrong(results), stalls, before, _again(told), ratios])
        return f"### {title}\n\n{_table(head, rows)}" if rows else ""

    return make


SHORT = (
    "strategy", "runs", "failed", "stall, ms", "longest gap before it, ms", "trained at most", "loss / undisturbed",
)  # fmt: skip
_seconds = _short("second", "A second kill within 60 ms of the first", SHORT)
_silences = _short("silence", "No heartbeat: a learner stops and does not wake, heartbeat timeout 1 s", SHORT)


def _stops(parts: dict[str, list[Result]]) -> str:
    rows = []
    for strategy, results in _by_strategy(parts["stop"]).items():
        for result in sorted(results, key=lambda each: each["seed"]):
            if "patience" not in result:
                rows.append([strategy, "-", "-", "-", "-", result.get("error", "failed")])
                continue
            back = f"{result['back']:.1f}" if result["back"] is not None else "-"
            steps = sorted(result["meanwhile"].values())
            rows.append([
                strategy, f"{result['patience']:g}", " ".join(map(str, steps)), f"{result['stall']:.1f}", back,
                "all" if result["ok"] else f"{result['missing']} missing",
            ])  # fmt: skip
    head = (
        "strategy", "heartbeat timeout, s", "steps of each other rank", "longest stall, s", "back after waking, s",
        "minibatches",
    )  # fmt: skip
    return f"### Stopped for 20 s (SIGSTOP), then woken\n\n{_table(head, rows)}" if rows else ""


def _schedules(parts: dict[str, list[Result]]) -> str:
    rows = []
    for strategy, results in _by_strategy(parts["simulate"]).items():
        told = [result for result in results if "fired" in result]
        share = 100 * sum(result["again"] for result in told) / max(1, sum(result["minibatches"] for result in told))
        rows.append([
            strategy, str(len(results)), _went_wrong(results),
            *(str(sum(result[name] for result in told)) for name in ("fired", "lost", "joined", "minibatches")),
            f"{share:.1f} %", _again(told), str(sum(result["traceless"] for result in told)),
        ])  # fmt: skip
    head = (
        "strategy", "schedules", "failed", "faults", "losses", "joined", "minibatches", "trained again",
        "trained at most", "in no weights, several learners lost",
    )  # fmt: skip
    title = "### Seeded schedules of faults in the simulator"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""


def _cycles(parts: dict[str, list[Result]]) -> str:
    rows = []
    for result in parts["cycles"]:
        if "first" not in result:
            continue
        where = "simulator" if result["seed"] == 0 else "processes"
        grown = [f"{result['first'][name]} to {result['last'][name]}" for name in ("kilobytes", "threads", "files")]
        rows.append([where, str(result["cycles"]), *grown, "no" if result["ok"] else "yes"])
    head = ("runs", "started and ended", "memory, kB", "threads", "open files", "grew")
    title = "### Many runs one after another (values after a tenth of them, and at the end)"
    return f"{title}\n\n{_table(head, rows)}" if rows else ""
