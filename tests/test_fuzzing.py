"""Whatever is in a file, its reader returns something or says in one line what is wrong; nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
