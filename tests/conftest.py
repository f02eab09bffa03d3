"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


hypothesis.settings.register_profile(  # a busy machine is no failure
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")
signal.signal(signal.SIGINT, signal.default_int_handler)  # `make test &` ignores it, and so would all that tests start
torch.set_num_threads(1)  # as learners have it by default; two threads each would fight for the cores


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share tests between workers as `xdist_schedule` says."""
    from xdist_schedule import Shares

    return Shares(config, log)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Real speech beside the project, where it is there."""
    folder = ROOT.parent / "shared" / "corpora"
    if not folder.is_dir():
        pytest.skip("no ../shared/corpora beside the project")
    return folder


@pytest.fixture(scope="session")
def stand_in() -> Callable[..., Any]:
    """Call a function of `device_jobs` in a process whose torch has the stand-in accelerator; return its result."""
    import json
    import subprocess
    import sys

    environment = _stand_in_environment()

    def call(name: str, *arguments: Any, program: str = "device_jobs", **variables: str) -> Any:
        command = [sys.executable, "-W", "error", str(ROOT / f"tests/support/{program}.py"), name]
        done = subprocess.run(
            [*command, json.dumps(arguments)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return call


@pytest.fixture(scope="session")
def stand_in_environment() -> dict[str, str]:
    """The environment of a process whose torch has the stand-in accelerator."""
    return _stand_in_environment()


def _stand_in_environment() -> dict[str, str]:
    from stand_in_build import CannotBuild, environment

    try:
        return environment()
    except CannotBuild as error:
        pytest.skip(f"no stand-in accelerator: {error}")


@pytest.fixture(scope="session")
def toned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of prepared data with all that a network may hear, in seconds."""
    import tone_corpus
    from roundelay.speech.preparation.ivector_stage import IvectorSettings
    from roundelay.speech.preparation.pipeline import prepare

    folder = tmp_path_factory.mktemp("toned")
    settings = replace(
        tone_corpus.SETTINGS,
        hmm=replace(tone_corpus.SETTINGS.hmm, adapt=True),
        language=replace(tone_corpus.SETTINGS.language, ctc=True),
        ivectors=IvectorSettings(size=4),
    )
    prepare(tone_corpus.make(folder / "corpus"), folder / "data", settings)
    return str(folder / "data")


@pytest.fixture
def data(toned: str) -> Path:
    """The same as a path."""
    return Path(toned)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real simulated runs, some with a straggler or a killed learner, and a record as processes write it."""
    from report_files import simulate_run, write_run

    folder = tmp_path_factory.mktemp("runs")
    simulate_run(folder / "one", "synchronous", 1)
    for strategy in ("synchronous", "adpsgd", "bmuf"):
        simulate_run(folder / f"{strategy}-4", strategy, 4)
    compute = {"seconds": 0.02, "jitter": 0.1}
    slow = {"name": "a switch", "compute": compute, "stragglers": [{"learner": 1, "factor": 5.0}]}
    for strategy in ("synchronous", "adpsgd"):
        simulate_run(folder / f"{strategy}-4-slow", strategy, 4, cluster=slow)
    faults = {"name": "faulty", "compute": compute, "faults": [{"learner": 2, "at_seconds": 0.1}]}
    simulate_run(folder / "adpsgd-4-killed", "adpsgd-random", 4, cluster=faults)
    write_run(folder / "processes-2", "bmuf", 2, clock="wall")
    return folder


@pytest.fixture(scope="session")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of them."""
    from roundelay.report.report_writer import write_report

    return write_report(runs, tmp_path_factory.mktemp("report"), target={"score": "error", "value": 0.79})
