"""Checkpoints on disk: whole or not at all, every byte vouched for, the last few kept, and disks that fail."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import roundelay.training.checkpoint_files
from command_line import ROUNDELAY, without_coverage
from roundelay.errors import CheckpointError
from roundelay.optim.schedules import Newbob
from roundelay.runtimes.simulator.simulation import SimulationOutcome
from roundelay.strategies import BMUF, Averaging, Synchronous
from roundelay.training.checkpoint_files import CheckpointId, Checkpoints, Saver, newest_complete
from roundelay.training.loop import Training
from roundelay.training.rank_state import RankState
from roundelay.training.training_settings import CheckpointSettings
from stopped_simulations import Stopped, events, job_of, run_in
from tiny_jobs import Watching


def snapshot(position: int = 40, rank: int = 0, size: int = 2, fill: float = 0.5) -> RankState:
    tensors = {"weights": torch.full((9,), fill), "steps": torch.tensor(7), "empty": torch.zeros(0)}
    return RankState(position, rank, size, 0, tensors, {"loss": 0.25, "best": float("inf"), "names": ["a", "b"]})


def save_all(run: Path, *positions: int, size: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(run)
    for position in positions:
        for rank in range(size):
            checkpoints.write(snapshot(position, rank, size))
    return checkpoints


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_part_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoints = save_all(tmp_path, 40)
    read = checkpoints.read(40, 1)
    assert read.state == snapshot().state
    assert (read.position, read.rank, read.size) == (40, 1, 2)
    assert all(torch.equal(read.tensors[name], x) for name, x in snapshot().tensors.items())
    assert {path.suffix for path in checkpoints.place(40).iterdir()} == {".json", ".safetensors"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole")
    save_all(run, 40, size=1)
    return run


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_corrupted_byte_anywhere_is_found(whole: Path, data: st.DataObject) -> None:
    checkpoints = Checkpoints(whole)
    path = data.draw(st.sampled_from(sorted(checkpoints.place(40).iterdir())))
    good = path.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != good[place]))
    damages = [good[:place] + bytes([other]) + good[place + 1 :], good[:place], good + bytes([other])]
    try:
        path.write_bytes(data.draw(st.sampled_from(damages)))
        with pytest.raises(CheckpointError, match="rank-0"):
            checkpoints.read(40, 0)
    finally:
        path.write_bytes(good)
    assert checkpoints.read(40, 0).position == 40


def test_every_single_byte_is_covered(whole: Path) -> None:
    checkpoints = Checkpoints(whole)
    for path in checkpoints.place(40).iterdir():
        good = bytearray(path.read_bytes())
        for place in range(0, len(good), 3):
            path.write_bytes(good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :])
            with pytest.raises(CheckpointError):
                checkpoints.read(40, 0)
        path.write_bytes(good)


def test_what_is_vouched_for_and_is_no_safetensors_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundelay.training.checkpoint_files, "save", lambda _: b"rubbish, and its digest agrees")
    checkpoints = save_all(tmp_path, 40)
    with pytest.raises(CheckpointError, match=r"rank-0\.safetensors: "):
        checkpoints.read(40, 0)


def test_parts_of_others_do_not_make_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = save_all(tmp_path, 20, 40)
    (checkpoints.place(40) / "rank-1.json").unlink()  # the run was killed before it was written
    assert newest_complete([checkpoints.readable_parts(0, 2), checkpoints.readable_parts(1, 2)]) == CheckpointId(
        20, 0, 2
    )
    later = snapshot(40, 1)
    later.attempt = 1
    checkpoints.write(later)
    assert newest_complete([checkpoints.readable_parts(0, 2), checkpoints.readable_parts(1, 2)]) == CheckpointId(
        20, 0, 2
    )
    shutil.copy(checkpoints.place(40) / "rank-0.json", checkpoints.place(40) / "rank-1.json")
    with pytest.raises(CheckpointError, match="is the part of rank 0"):
        checkpoints.read(40, 1)


def test_fewer_and_more_processes_answer_for_all_parts(tmp_path: Path) -> None:
    checkpoints = save_all(tmp_path, 40, size=5)
    for seats in (1, 2, 3, 5, 8):
        chosen = newest_complete([checkpoints.readable_parts(seat, seats) for seat in range(seats)])
        assert chosen == CheckpointId(40, 0, 5)


def test_another_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = save_all(tmp_path, 40)
    monkeypatch.setattr(roundelay.training.checkpoint_files, "FORMAT", 2)
    with pytest.raises(CheckpointError, match="format 1 is not 2"):
        checkpoints.read(40, 0)


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    saver = Saver(tmp_path, CheckpointSettings(keep=2))
    for position in (10, 20, 30, 40):
        for rank in range(2):
            saver.submit(snapshot(position, rank))
        saver.wait()
    saver.close()
    assert saver.checkpoints.positions() == [40, 30]


def test_who_is_killed_while_it_removes_old_ones_leaves_nothing_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vouches for a part goes before the part, also where the first rank removes those of others."""
    saver, gone = Saver(tmp_path, CheckpointSettings(keep=2)), list[str]()
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        gone.append(path.name)
        unlink(path, missing_ok=missing_ok)

    save_all(tmp_path, 10, 20, 30, size=3)
    monkeypatch.setattr(Path, "unlink", noted)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # it was killed before
    saver.submit(snapshot(40, 0, 3))
    saver.wait()
    saver.close()
    assert saver.checkpoints.ranks(20) == saver.checkpoints.ranks(10) == []
    assert all(gone.index(f"rank-{rank}.json") < gone.index(f"rank-{rank}.safetensors") for rank in range(3))


def test_half_written_files_are_cleared_away(tmp_path: Path) -> None:
    checkpoints = save_all(tmp_path, 20, 40)
    for left in (tmp_path / ".model.safetensors.123", checkpoints.place(20) / ".rank-0.safetensors.77"):
        left.write_bytes(b"half")
    checkpoints.clean(20)
    assert checkpoints.positions() == [20]
    assert not list(tmp_path.rglob(".*"))


# -- runs -------------------------------------------------------------------------------------------------------------


def stopped_and_through(tmp_path: Path) -> tuple[Path, SimulationOutcome[Training]]:
    through, stopped = tmp_path / "through", tmp_path / "stopped"
    through.mkdir()
    stopped.mkdir()
    expected = run_in(through, job_of(BMUF(block=3)), 3)
    with contextlib.suppress(Stopped):
        run_in(stopped, job_of(BMUF(block=3)), 3, stop=45)
    return stopped, expected


def test_a_damaged_newest_checkpoint_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped, expected = stopped_and_through(tmp_path)
    checkpoints = Checkpoints(stopped)
    newest, before = checkpoints.positions()[:2]
    path = checkpoints.place(newest) / "rank-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    outcome = run_in(stopped, job_of(BMUF(block=3)), 3)
    assert torch.equal(outcome.consensus, expected.consensus)
    assert f"{path}: damaged" in caplog.text
    assert f"resuming from the checkpoint before it, at minibatch {before}" in caplog.text
    record = [json.loads(line) for line in (stopped / "record.jsonl").read_text().splitlines()]
    assert [event["minibatch"] for event in record if event["event"] == "resumed"] == [before]


def test_all_damaged_begins_again(tmp_path: Path) -> None:
    stopped, expected = stopped_and_through(tmp_path)
    for path in Checkpoints(stopped).folder.rglob("*.json"):
        path.write_bytes(b"{}")
    outcome = run_in(stopped, job_of(BMUF(block=3)), 3)
    assert torch.equal(outcome.consensus, expected.consensus)
    assert sorted(event["minibatch"] for event in events(stopped) if event["event"] == "step") == list(range(60))


def test_schedule_and_early_end_are_restored(tmp_path: Path) -> None:
    def job() -> Any:
        return job_of(Averaging(period=2), schedule=lambda: Newbob(halve_below=0.5, stop_below=0.2))

    through, stopped = tmp_path / "through", tmp_path / "stopped"
    through.mkdir()
    stopped.mkdir()
    expected = run_in(through, job(), 2)
    steps = sum(event["event"] == "step" for event in events(through))
    for stop in (20, steps):
        with contextlib.suppress(Stopped):
            run_in(stopped, job(), 2, stop=stop)
    assert torch.equal(run_in(stopped, job(), 2).consensus, expected.consensus)
    assert events(stopped) == events(through)


def test_by_minutes_the_place_is_foreseen(tmp_path: Path) -> None:
    def job() -> Any:
        job = job_of(Synchronous(), minibatches=400, budget={"evaluate_every": 200, "checkpoint_every": None})
        job.checkpoint = CheckpointSettings(every_minutes=0.05, keep=50)  # 3 s of virtual time
        return job

    run_in(tmp_path, job(), 4)
    times = [event["time"] for event in events(tmp_path) if event["event"] == "checkpoint"]
    gaps = [b - a for a, b in zip([0.0, *times[:-1]], times, strict=True)]
    assert len(times) > 3
    assert all(2.5 < gap < 6.0 for gap in gaps), gaps
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    with contextlib.suppress(Stopped):
        run_in(stopped, job(), 4, stop=300)
    run_in(stopped, job(), 4)
    assert sorted(event["minibatch"] for event in events(stopped) if event["event"] == "step") == list(range(400))


# -- numbers that are none --------------------------------------------------------------------------------------------


# -- disks ------------------------------------------------------------------------------------------------------------


def stops_cleanly(run: Path, said: str, disturb: Any) -> None:
    """Run until ``disturb`` has done its work; the run stops with one line, and what was saved before is whole."""
    count = 0

    def watch(training: Any) -> None:
        def stepped(*_: Any) -> None:
            nonlocal count
            count += 1
            if count == 30:
                disturb()

        training.observers.append(Watching(stepped))

    with pytest.raises(CheckpointError, match=said) as raised:
        run_in(run, job_of(Synchronous()), 2, watch=watch)
    assert "\n" not in str(raised.value)
    assert "the last checkpoint is complete" in str(raised.value)


def test_a_lost_folder_stops_the_run(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    stops_cleanly(run, "No such file or directory", lambda: run.rename(elsewhere))
    assert not run.exists()  # nothing was made in the place of what is lost
    checkpoints = Checkpoints(elsewhere)
    assert newest_complete([checkpoints.readable_parts(rank, 2) for rank in range(2)]) is not None


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_full_or_read_only_disk_stops_the_run(how: str, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")

    def fill() -> None:
        with (tmp_path / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def freeze() -> None:
        folder = str(run / "checkpoints")
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)

    run = tmp_path / "run"
    run.mkdir()
    try:
        said = "No space left on device" if how == "full" else "Read-only file system"
        stops_cleanly(run, said, fill if how == "full" else freeze)
        checkpoints = Checkpoints(run)
        assert newest_complete([checkpoints.readable_parts(rank, 2) for rank in range(2)]) is not None
        if how == "full":
            (tmp_path / "ballast").unlink()
            run_in(run, job_of(Synchronous()), 2)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_with_patience_training_pauses_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failures = Checkpoints.write, 2

    def full(self: Checkpoints, snapshot: RankState) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        write(self, snapshot)

    monkeypatch.setattr(Checkpoints, "write", full)
    monkeypatch.setattr(roundelay.training.checkpoint_files, "RETRY_SECONDS", 0.01)
    job = job_of(Synchronous())
    job.checkpoint = CheckpointSettings(every_frames=1, retry_minutes=1.0)
    run_in(tmp_path, job, 2)
    assert failures == 0
    assert Checkpoints(tmp_path).positions()[0] == 56


@pytest.mark.slow
def test_a_limit_on_file_sizes_stops_the_run(tmp_path: Path, root: Path) -> None:
    run = tmp_path / "run"
    words = ["train", str(root / "experiments" / "tiny.toml"), "--out", str(run), "--on", "simulator"]
    more = ["--set", "budget.minibatches=60", "--set", "checkpoint.every_frames=640", "--set", "record.max_spans=0"]
    done = subprocess.run(
        [*ROUNDELAY, *words, *more],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        env=without_coverage(),
    )
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert "File too large" in line
    assert "Traceback" not in done.stderr
