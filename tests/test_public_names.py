"""What the package shows to the world."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import roundelay
from roundelay.strategies import STRATEGIES


def test_all_is_importable() -> None:
    for name in roundelay.__all__:
        assert getattr(roundelay, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = roundelay.nothing
    assert {"train", "simulate", "resume", "replay", "compare", "plan", "decode", "join"} <= set(dir(roundelay))


def test_every_strategy_is_public_by_its_class() -> None:
    for kind in STRATEGIES.values():
        assert getattr(roundelay, kind.__name__) is kind


@pytest.mark.slow
def test_importing_costs_little_beyond_torch() -> None:
    code = (
        "import torch, torch.distributed, time; t = time.process_time(); "
        "import roundelay; roundelay.join; roundelay.Synchronous; print(time.process_time() - t)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) <= 0.3  # seconds of this process's own time, whatever else the machine does


def test_strategies_import_only_the_contract_and_torch(root: Path) -> None:
    allowed = (
        "roundelay.strateg",
        "roundelay.vectors.chunks",
        "roundelay.learner",
        "roundelay.communicator",
        "roundelay.config",
        "roundelay.errors",
        "roundelay.plugins",
    )
    standard = {"__future__", "dataclasses", "typing", "collections.abc", "itertools", "functools", "math"}
    for path in sorted((root / "src/roundelay/strategies").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                fine = name in standard or name.split(".")[0] == "torch" or name.startswith(allowed)
                assert fine or path.name in ("mixing.py", "compression.py"), f"{path.name} imports {name}"
                assert name not in ("asyncio", "threading", "logging", "torch.distributed"), f"{path.name}: {name}"


def test_speech_knows_nothing_of_strategies_and_runtimes_nothing_of_speech(root: Path) -> None:
    for folder, forbidden in (("speech", ("strateg", "runtimes", "training")), ("runtimes", ("speech", "corpora"))):
        for path in sorted((root / "src/roundelay" / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("roundelay."):
                    rest = (node.module or "").removeprefix("roundelay.")
                    assert not rest.startswith(forbidden), f"{path.name} imports {node.module}"


def test_no_pickle_and_no_shell(root: Path) -> None:
    for path in sorted((root / "src").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pickle", "marshal", "shelve"}, path
            if isinstance(node, ast.keyword) and node.arg == "shell":
                raise AssertionError(f"{path}: shell=")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "numpy.load", "os.system"), f"{path}: {called}"


def test_experiments_are_toml_only(root: Path) -> None:
    assert not list((root / "experiments").rglob("*.py"))


@pytest.mark.slow
def test_versions_are_told() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import json, roundelay.runs.run_folder as r; print(json.dumps(r.versions()))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(json.loads(said.stdout)) >= {"roundelay", "torch", "python"}
