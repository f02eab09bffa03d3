"""Fuzz everything that reads what others have written, for an hour: ``make fuzz``.

Each target runs in a process of its own, in turns, with bounded memory.  A crash is an error that is not one of ours,
or a signal; a hang is one input that takes more than `HANG_CPU_SECONDS`.  Inputs that crash or hang are kept in
``--out``.  The table is for docs/explanation/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import logging
import math
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

import torch  # noqa: E402
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.errors import Flaky  # noqa: E402

import fuzz_targets  # noqa: E402
from roundelay.errors import RoundelayError  # noqa: E402

HANG_CPU_SECONDS, HANG_WALL_SECONDS = 20.0, 300.0
EXTRA_BYTES = 4 << 30  # of address space, beyond what a process has at its start
EXAMPLES = 100  # that hypothesis draws from one seed
KEPT_BYTES = 1 << 16
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
BEGIN, END = "<!-- fuzz: begin -->\n", "<!-- fuzz: end -->\n"
NUMBERS = struct.Struct("<QQQddI")  # executions, refused, crashes, CPU seconds at the beginning, slowest, kept bytes


class Over(KeyboardInterrupt):
    """The time of this turn is over; hypothesis lets it pass."""


@dataclass
class Tally:
    """What came of one target."""

    executions: int = 0
    refused: int = 0
    crashes: int = 0
    hangs: int = 0
    slowest_seconds: float = 0.0
    peak_mb: float = 0.0
    grown_mb: float = 0.0
    """Peak beyond the memory of the process before the first input."""

    def add(self, other: Tally) -> None:
        """Count another turn."""
        for name in ("executions", "refused", "crashes", "hangs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("slowest_seconds", "peak_mb", "grown_mb"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


class Shared:
    """Memory of the parent and the child that runs a target: counters, and the present input."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, NUMBERS.size + KEPT_BYTES)
        self.executions = self.refused = self.crashes = self._kept = 0
        self.began, self.slowest = math.nan, 0.0

    def write(self) -> None:
        """Let the parent see the numbers."""
        values = (self.executions, self.refused, self.crashes, self.began, self.slowest, self._kept)
        self._memory[: NUMBERS.size] = NUMBERS.pack(*values)

    def read(self) -> None:
        """See the child's numbers."""
        self.executions, self.refused, self.crashes, self.began, self.slowest, self._kept = NUMBERS.unpack(
            self._memory[: NUMBERS.size]
        )

    def keep(self, content: bytes) -> None:
        """Keep the present input, in case that it is the last one."""
        content = content[:KEPT_BYTES]
        self._memory[NUMBERS.size : NUMBERS.size + len(content)] = content
        self._kept = len(content)
        self.write()

    @property
    def kept(self) -> bytes:
        """The present input."""
        return bytes(self._memory[NUMBERS.size : NUMBERS.size + self._kept])


def peak_mb() -> float:
    """Return the largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(target: fuzz_targets.Target, data: st.DataObject, shared: Shared, out: Path, name: str) -> None:
    """Run a target on one input."""
    shared.began = time.process_time()
    shared.keep(b"")
    try:
        target(data, shared.keep)
    except (RoundelayError, OSError):
        shared.refused += 1
    except MemoryError as error:
        crashed(error, shared, out, name)
    except Exception as error:
        if type(error).__module__.startswith("hypothesis"):
            raise
        crashed(error, shared, out, name)
    shared.executions += 1
    shared.slowest = max(shared.slowest, time.process_time() - shared.began)
    shared.began = math.nan
    shared.write()


def crashed(error: BaseException, shared: Shared, out: Path, name: str) -> None:
    """Keep the input of a crash, and where it was."""
    shared.crashes += 1
    keep_input(out, name, "crash", shared.kept, "".join(traceback.format_exception(error)))


def keep_input(out: Path, name: str, kind: str, content: bytes, said: str) -> None:
    """Write an input, and a line about it; the same error is kept ten times at most."""
    place = out / name.replace(": ", "-").replace(" ", "-")
    place.mkdir(parents=True, exist_ok=True)
    number = len(list(place.glob("*.input")))
    if number < 10:
        (place / f"{number}.input").write_bytes(content)
    if number < 100:
        with (out / "findings.jsonl").open("a") as file:
            file.write(json.dumps({"target": name, "kind": kind, "number": number, "said": said[-3000:]}) + "\n")


def child(name: str, shared: Shared, seconds: float, first_seed: int, out: Path, report: int) -> None:
    """Run one target for some seconds, then tell how much memory it took."""
    torch.set_num_threads(1)
    logging.disable()  # of refused strangers
    warnings.simplefilter("ignore")
    target, end, number = fuzz_targets.TARGETS[name], time.monotonic() + seconds, first_seed
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + EXTRA_BYTES, size + EXTRA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = 0.0

    def batch(data: st.DataObject) -> None:
        nonlocal before
        if time.monotonic() >= end:
            raise Over
        one(target, data, shared, out, name)
        before = before or peak_mb()  # the first input also makes what the others share

    draws = settings(
        max_examples=EXAMPLES, database=None, deadline=None, phases=(Phase.generate,), print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with contextlib.suppress(Over):
        while True:
            with contextlib.suppress(Flaky):  # what a target offers to draw may depend on what it made before
                seed(number)(draws(given(st.data())(batch)))()
            number += 1
    os.write(report, struct.pack("<dd", peak_mb(), peak_mb() - before))


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds of a process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def turn(name: str, seconds: float, first_seed: int, out: Path) -> Tally:
    """Run a target in a child for some seconds, and watch it."""
    shared, (reading, writing), folder = Shared(), os.pipe(), tempfile.mkdtemp(prefix="roundelay-fuzz-")
    shared.write()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reading)
            tempfile.tempdir = folder
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # OpenFst says there what it thinks of a file
            child(name, shared, seconds, first_seed, out, writing)
            status = 0
        except BaseException as error:
            keep_input(out, name, "failure of the fuzzer", shared.kept, "".join(traceback.format_exception(error)))
        finally:
            os._exit(status)
    os.close(writing)
    tally, last, since = Tally(), -1, time.monotonic()
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        shared.read()
        if ended:
            break
        if shared.executions != last:
            last, since = shared.executions, time.monotonic()
        busy = cpu_seconds(process) - shared.began
        if busy > HANG_CPU_SECONDS or time.monotonic() - since > HANG_WALL_SECONDS:
            tally.hangs += 1
            keep_input(out, name, "hang", shared.kept, f"{busy:.1f} CPU seconds")
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            break
        time.sleep(0.2)
    if not tally.hangs and status:
        shared.crashes += 1
        keep_input(out, name, "end", shared.kept, f"the process ended with status {status}")
    told = os.read(reading, 16)
    os.close(reading)
    shutil.rmtree(folder, ignore_errors=True)
    tally.executions, tally.refused, tally.crashes = shared.executions, shared.refused, shared.crashes
    tally.slowest_seconds = shared.slowest
    if len(told) == 16:
        tally.peak_mb, tally.grown_mb = struct.unpack("<dd", told)
    return tally


def fuzz(names: list[str], seconds: float, out: Path, first_seed: int = 0, slice_seconds: float = 20.0) -> Any:
    """Run all targets in turns until the time is over; return a tally for each."""
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    fuzz_targets.make_once(names)
    tallies: dict[str, Tally] = {name: Tally() for name in names}
    begin, turns = time.monotonic(), 0
    slice_seconds = min(slice_seconds, seconds / len(names))
    while time.monotonic() - begin < seconds:
        name = names[turns % len(names)]
        tallies[name].add(turn(name, slice_seconds, first_seed + 1_000_003 * turns, out))
        turns += 1
    return tallies


def table(tallies: dict[str, Tally], seconds: float) -> str:
    """Return the table of a run."""
    rows = [
        "| target | executions | refused | crashes | hangs | slowest, CPU s | peak memory, MB | of it by inputs, MB |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    total = Tally()
    groups: dict[str, list[str]] = defaultdict(list)
    for name, tally in tallies.items():
        total.add(tally)
        groups[name.partition(":")[0]].append(name)
    rows += [_row(name, tallies[name]) for names in groups.values() for name in names]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return "\n".join([
        f"{total.executions} inputs in {seconds / 60:.0f} minutes ({today}): "
        f"{total.crashes} crashes, {total.hangs} hangs.",
        "", *rows, _row("all", total),
    ]) + "\n"  # fmt: skip


def _row(name: str, tally: Tally) -> str:
    numbers = [tally.executions, tally.refused, tally.crashes, tally.hangs, f"{tally.slowest_seconds:.2f}"]
    return "| " + " | ".join(map(str, [name, *numbers, f"{tally.peak_mb:.0f}", f"{tally.grown_mb:.0f}"])) + " |"


def main() -> None:
    """Fuzz, print the table, and write it into the page if asked to; end with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--target", default="", help="only those whose names begin so")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the table into docs/explanation/reliability.md")
    given_words = parser.parse_args()
    names = [name for name in fuzz_targets.TARGETS if name.startswith(given_words.target)]
    begin = time.monotonic()
    tallies = fuzz(names, 60 * given_words.minutes, given_words.out, given_words.seed)
    made = table(tallies, time.monotonic() - begin)
    sys.stdout.write(made)
    (given_words.out / "table.md").write_text(made)
    if given_words.write:
        text = PAGE.read_text()
        head, rest = text.split(BEGIN, 1)
        PAGE.write_text(head + BEGIN + "\n" + made + "\n" + END + rest.split(END, 1)[1])
    sys.exit(any(tally.crashes or tally.hangs for tally in tallies.values()))


if __name__ == "__main__":
    main()
