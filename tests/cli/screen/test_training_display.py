"""What a person reads while a run trains, without a terminal."""

from __future__ import annotations

import pytest

from roundelay.cli.screen.training_display import Display, figures, say_speed
from roundelay.experiment.run_observer import Evaluated

ABOUT = {
    "strategy": "asgd", "learners": 2, "servers": 1, "on": "simulator", "device": "cpu", "batch": 16,
    "global_batch": 32, "minibatches": 40, "epochs": 2.0,
}  # fmt: skip
STAGE = {"kind": "rbm", "stage": 1, "stages": 2, "layer": "hidden.0", "scores": {"loss": 0.5}, "guarded": 3}


def test_what_begins_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Display().started(ABOUT)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "asgd on 2 learners and 1 server (simulator, cpu): batch 16 per learner, 32 in all; 40 minibatches, 2 epochs\n"
    )


def test_a_line_for_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    display.began(40)
    display.stepped(0, 16, 1.5)
    display.evaluated(
        Evaluated(minibatch=20, epoch=0.5, scores={"loss": 1.25, "error": 0.1}, clock="virtual", seconds=3.0)
    )
    display.ended()
    assert "epoch 0.5  minibatch 20/40  loss 1.2500  error 10.00 %  3.000 s virtual" in capsys.readouterr().err


def test_a_stage_of_pre_training(capsys: pytest.CaptureFixture[str]) -> None:
    Display().stage_ended(STAGE)
    assert capsys.readouterr().err == "pretrain rbm 1 of 2 (hidden.0): loss 0.5000  guarded 3 times\n"


def test_with_json_nothing_is_told_but_what_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = Display(as_json=True)
    quiet.started(ABOUT)
    quiet.stage_ended(STAGE)
    assert capsys.readouterr().err == ""
    quiet.noticed("the rate is lower")
    assert capsys.readouterr().err == "the rate is lower\n"


def test_a_run_that_never_began_can_end() -> None:
    Display().ended()


def test_errors_are_in_percent() -> None:
    scores = {"loss": 1.23456, "error": 0.0512, "distance": 2.0}
    assert figures(scores) == ["loss 1.2346", "error 5.12 %", "consensus distance 2.0000"]


def test_speeds_are_short() -> None:
    assert [say_speed(speed) for speed in (12.4, 999.0, 31_240.0)] == ["12 frames/s", "999 frames/s", "31.2 k frames/s"]
