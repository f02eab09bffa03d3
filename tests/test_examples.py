"""Programs of public kinds, ported: on two processes they learn what their plain twins learn alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import port_diffs
import pytest

import port_runner
from framework_venv import framework_python

LEARNED = {"char_lm": 3.2, "images": 1.4, "lstm": 2.6, "gan": 1.4}
"""By port: what its last number is below with any strategy; untrained it is 4.9, 2.1, 4.4 and 1.8."""
WITH_FRAMEWORKS = {"lightning_module": 1.5, "accelerate_script": 1.5, "ctc_lhotse": 4.0}
"""The same with packages of another virtual environment; untrained, the last two have 3.7 and 8.6."""
STRATEGIES = ("bmuf", "adpsgd", "easgd")


def numbers(words: list[str], folder: Path) -> list[list[float]]:
    """Run a program; return the loss of each run, and what it says beside it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^loss .*", done.stdout, re.MULTILINE)
    return [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in lines]


def alone(program: Path, folder: Path, python: str = sys.executable) -> float:
    return numbers([python, str(program)], folder)[0][0]


def on_two(program: Path, *strategies: str, folder: Path, python: str = sys.executable) -> list[list[float]]:
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return numbers([*torchrun, port_runner.__file__, str(program), *strategies], folder)


@pytest.mark.slow
@pytest.mark.timeout(600)  # on a machine that has other things to do
@pytest.mark.parametrize("name", [*LEARNED, *WITH_FRAMEWORKS])
def test_a_port_learns_what_the_plain_program_learns(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = framework_python() if name in WITH_FRAMEWORKS else sys.executable
    monkeypatch.setenv("PYTHONPATH", str(root / "src"))
    plain = alone(root / "examples" / "plain" / f"{name}.py", tmp_path, python)
    program = root / "examples" / f"{name}.py"
    same, *others = on_two(program, "synchronous", *STRATEGIES, folder=tmp_path, python=python)
    assert same[0] == pytest.approx(plain, rel=0.02)
    assert len(others) == len(STRATEGIES)
    assert max(each[-1] for each in [same, *others]) < (LEARNED | WITH_FRAMEWORKS)[name]


def test_the_page_shows_how_each_port_differs_from_its_plain_twin(root: Path) -> None:
    text = port_diffs.PAGE.read_text(encoding="utf-8")
    assert text == port_diffs.renewed(text), "run python tools/port_diffs.py"
    twins = {path.stem for path in (root / "examples" / "plain").glob("*.py")}
    assert {found[2] for found in port_diffs.BLOCK.finditer(text)} == twins


def test_ports_are_short(root: Path) -> None:
    for twin in (root / "examples" / "plain").glob("*.py"):
        port = root / "examples" / twin.name
        assert len(port.read_text(encoding="utf-8").splitlines()) <= 60, port.name


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a machine that has other things to do
def test_a_users_own_model_is_simulated_compared_and_planned(root: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(root / "examples" / "simulate_own_model.py"), "here"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rule, run, own, compared, planned = done.stdout.splitlines()
    assert rule.startswith("bmuf with 64 learners: rate x ")
    assert float(run.split()[1]) < 0.5  # of four classes
    assert own.startswith("own strategy: error 0.")
    assert compared.startswith("3 runs compared: ")  # two strategies, and one learner
    assert planned.startswith("64 learners: ")
    assert all((tmp_path / "here" / name / "report.html").exists() for name in ("run", "study"))
