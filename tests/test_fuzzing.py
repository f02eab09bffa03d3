"""Whatever is in a file, its reader returns something or says in one line what is wrong; nothing else."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz_targets
from damaged_files import READERS, TOML, damaged, put
from roundelay.errors import RoundelayError
from roundelay.experiment.settings import Experiment
from roundelay.runtimes.fault_plan import parse as parse_faults


@pytest.mark.parametrize("name", sorted(READERS))
def test_the_sample_is_whole(name: str, tmp_path: Path) -> None:
    READERS[name].read(put(READERS[name], READERS[name].sample, tmp_path))


@pytest.mark.parametrize("name", sorted(READERS))
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_damaged_file_is_read_or_complained_of(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = put(reader, data.draw(damaged(reader.sample)), Path(folder))
        try:
            reader.read(path)
        except RoundelayError as error:
            said(error)
        except OSError:  # a path in the file that leads nowhere; the command line shows it in one line, too
            pass


@pytest.mark.parametrize("name", sorted(fuzz_targets.TARGETS))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_a_sample_of_the_long_run(name: str, data: st.DataObject) -> None:
    """``make fuzz`` does the same for an hour."""
    try:
        fuzz_targets.TARGETS[name](data, lambda _: None)
    except RoundelayError as error:
        said(error)
    except OSError:
        pass


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``tools/fuzz.py`` with three bad targets."""
    spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).parents[1] / "tools" / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fuzz", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    for name, target in (("bad: crash", crash), ("bad: hang", hang), ("bad: memory", fill)):
        monkeypatch.setitem(fuzz_targets.TARGETS, name, target)
    return module


def crash(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    keep(b"zero")
    data.draw(st.integers())
    raise ZeroDivisionError


def hang(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    keep(b"for ever")
    while True:
        pass


def fill(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    data.draw(st.integers())
    bytearray(1 << 36)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bad: crash", "bad: hang", "bad: memory", "reader: json"])
def test_the_fuzzer_counts_crashes_hangs_and_memory(
    tool: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "HANG_CPU_SECONDS", 1.0)
    tally = tool.fuzz([name], 1.0, tmp_path)[name]
    if name == "bad: hang":
        assert (tally.hangs, tally.crashes) == (1, 0)
        assert (tmp_path / "bad-hang" / "0.input").read_bytes() == b"for ever"
        return
    assert tally.hangs == 0
    assert tally.peak_mb > 10
    assert tally.executions > 0
    assert (tally.crashes > 0) == name.startswith("bad")
    assert f"| {name} | {tally.executions} |" in tool.table({name: tally}, 1.0)
    if name == "bad: crash":
        assert "ZeroDivisionError" in (tmp_path / "findings.jsonl").read_text()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    text=st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(["kill", "stop", "slow", "1", "at", "for", "30s", "x5", ";", "-1", "nan", "s", "0"]),
            max_size=8,
        ).map(" ".join),
    )
)
def test_faults_is_understood_or_complained_of(text: str) -> None:
    try:
        parse_faults(text, 4)
    except RoundelayError as error:
        said(error)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    key=st.one_of(
        st.text(max_size=12), st.sampled_from(["learners", "strategy.block", "optimizer.lr", "task.hidden", "seed"])
    ),
    value=st.one_of(
        st.text(max_size=12), st.sampled_from(["1", "-1", "nan", "[1, 2]", "{a = 1}", "true", '"x"', "1e400"])
    ),
)
def test_any_assignment_is_taken_or_complained_of(key: str, value: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_bytes(TOML)
        try:
            Experiment.read(path, [f"{key}={value}"])
        except RoundelayError as error:
            said(error)


def said(error: RoundelayError) -> None:
    """See that there is one line to show."""
    assert str(error).strip()
