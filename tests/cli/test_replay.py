"""``roundelay replay`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call


@pytest.mark.slow
def test_an_asynchronous_run_is_replayed_bit_for_bit(root: Path, tmp_path: Path) -> None:
    tiny, run = str(root / "experiments" / "tiny.toml"), tmp_path / "run"
    settings = ("--set", "record.order=true", "--set", "budget.minibatches=200", "--set", "task.hidden=[8]")
    done = call("train", tiny, "--out", str(run), "--learners", "4", "--strategy", "adpsgd", *settings)
    assert done.returncode == 0, done.stderr
    again = call("replay", str(run), "--out", str(tmp_path / "again"), "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert result["equal"] is True
    assert result["difference"] == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert "same weights, bit for bit" in call("replay", str(run)).stdout
    order = (run / "order-2.txt").read_text().split()
    (run / "order-2.txt").write_text(" ".join(order[:-20]) + "\n")
    short = call("replay", str(run))
    assert (short.returncode, "after the end of the recorded order" in short.stderr) == (2, True)
    (run / "order-2.txt").write_text("c0 g x\n")
    wrong = call("replay", str(run))
    assert (wrong.returncode, "token 2 is 'x'" in wrong.stderr) == (2, True)
    (run / "order-2.txt").unlink()
    missing = call("replay", str(run))
    assert (missing.returncode, "order-2.txt is missing" in missing.stderr) == (2, True)
