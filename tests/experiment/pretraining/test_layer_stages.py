"""Pre-training: what each stage trains on, under every strategy and on every runtime, and what the run starts with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn

from command_line import ROUNDELAY
from pretraining_experiment import TASK, experiment
from roundelay import config
from roundelay.cli.train import command
from roundelay.errors import CheckpointError, SettingsError
from roundelay.experiment.backends import RunOptions
from roundelay.experiment.pretraining.layer_stages import Pretraining, pretrained, stages_done
from roundelay.experiment.pretraining.rbm import RBM
from roundelay.experiment.run_training import run as run_again
from roundelay.experiment.run_training import train
from roundelay.experiment.settings import Experiment
from roundelay.runs.run_folder import RunFolder
from roundelay.runtimes.mpi.mpi_launcher import find_mpiexec
from roundelay.strategies import STRATEGIES


def run(asked: Experiment, folder: Path) -> dict[str, Any]:
    return train(asked, folder, on="simulator").plain()


def events(folder: Path, stage: int) -> list[dict[str, Any]]:
    record = folder / "pretrain" / str(stage) / "record.jsonl"
    return [json.loads(line) for line in record.read_text().splitlines()]


def losses(folder: Path, stage: int) -> list[float]:
    return [event["loss"] for event in events(folder, stage) if event["event"] == "evaluate" and "loss" in event]


def test_each_rbm_is_trained_on_what_the_layers_below_make_of_the_data() -> None:
    stages = Pretraining(experiment())
    assert (stages.stages, stages.chain) == (2, ["0", "2", "4"])
    first = stages.job(0)
    rows = first.task.load(0, 3)
    frames = stages.task.load(0, 3)[0]
    mean, deviation = first.task.moments  # type: ignore[attr-defined]  # it is an RBMTask
    torch.testing.assert_close(rows, (frames - mean) / deviation)
    whole = torch.cat([first.task.load(0, k) for k in range(first.task.minibatches_per_epoch)])
    assert whole.mean(0).abs().max() < 1e-5
    assert (whole.std(0) - 1).abs().max() < 0.01

    rbm = first.task.make_module()
    assert isinstance(rbm, RBM)
    assert rbm.kind == "gaussian"
    stages.absorb(0, rbm)
    second = stages.job(1)
    torch.testing.assert_close(second.task.load(0, 3), rbm.hidden(rows).detach())
    above = second.task.make_module()
    assert isinstance(above, RBM)
    assert above.kind == "bernoulli"
    whole = torch.cat([second.task.load(0, k) for k in range(second.task.minibatches_per_epoch)])
    torch.testing.assert_close(torch.sigmoid(above.visible_bias.detach()), whole.mean(0))


def test_the_stack_is_what_the_run_starts_with(tmp_path: Path) -> None:
    asked = experiment(budget={"minibatches": 1}, optimizer={"name": "SGD", "lr": 0.0})
    run(asked, tmp_path / "run")
    trained, model = (
        load_file(tmp_path / "run" / path) for path in ("pretrain/model.safetensors", "model.safetensors")
    )
    assert sorted(trained) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert all(torch.equal(model[name], trained[name]) for name in trained)
    fresh = asked.make_task().make_module().state_dict()
    assert torch.equal(model["4.weight"], fresh["4.weight"])
    assert not torch.equal(model["2.weight"], fresh["2.weight"])
    about = json.loads((tmp_path / "run" / "pretrain" / "model.json").read_text())
    assert (about["stage"], about["stages"], about["layer"], about["guarded"]) == (2, 2, "2", 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_reconstruction_gets_better_under_every_strategy(strategy: str, tmp_path: Path) -> None:
    asked = experiment(strategy=strategy, learners=4, budget={"minibatches": 4}, pretrain={"epochs": 3})
    run(asked, tmp_path / "run")
    for stage in (1, 2):
        errors = losses(tmp_path / "run", stage)
        assert errors[-1] < errors[0]
    assert len(losses(tmp_path / "run", 1)) == 6  # twice as long for the Gaussian one


def test_the_guard_acts_on_averages_in_synchronous_and_locally_elsewhere(tmp_path: Path) -> None:
    guards: dict[str, list[set[str]]] = {}
    for strategy in ("synchronous", "averaging"):
        asked = experiment(
            strategy=strategy,
            learners=3,
            budget={"minibatches": 3},
            pretrain={"layers": 1, "first_rate": 3.0, "deviation": 1.5, "normalise": False},
        )
        run(asked, tmp_path / strategy)
        acted: dict[float, set[str]] = {}
        for event in events(tmp_path / strategy, 1):
            if "guarded" in event:
                acted.setdefault(event["minibatch"] // 3, set()).add(event["member"])
        guards[strategy] = list(acted.values())
        assert guards[strategy], "the guard never acted"
    assert all(len(member) == 3 for member in guards["synchronous"])  # all of them or none
    assert any(len(member) < 3 for member in guards["averaging"])
    about = json.loads((tmp_path / "synchronous" / "pretrain" / "model.json").read_text())
    assert about["guarded"] == len(guards["synchronous"])


def test_layerwise_grows_the_network(tmp_path: Path) -> None:
    asked = experiment("layerwise", task={"hidden": [10, 8, 8]}, natural_gradient={"rank_in": 3, "rank_out": 3})
    stages = Pretraining(asked)
    assert stages.stages == 2
    job = stages.job(0)
    module = job.task.make_module()
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(6, 10), (10, 5)]
    run(asked, tmp_path / "run")
    assert losses(tmp_path / "run", 1)[-1] < 1.7  # chance is log 5
    assert [path.name for path in sorted((tmp_path / "run" / "pretrain").iterdir())] == [
        "1",
        "2",
        "model.json",
        "model.safetensors",
    ]
    trained = load_file(tmp_path / "run" / "pretrain" / "model.safetensors")
    assert sorted(trained) == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_layerwise_keeps_batch_norm_and_dropout_where_they_belong() -> None:
    asked = experiment(
        "layerwise", task={"hidden": [8, 8, 8], "batch_norm": True, "dropout": 0.1, "activation": "relu"}
    )
    module = Pretraining(asked).job(1).task.make_module()
    kinds = [type(layer).__name__ for layer in module.children()]
    assert kinds == [*["Linear", "BatchNorm1d", "ReLU", "Dropout"] * 2, *["Identity"] * 4, "Linear"]


@pytest.mark.parametrize("kind", ["rbm", "layerwise"])
def test_repeats_to_the_bit_and_can_be_taken_over(kind: str, tmp_path: Path) -> None:
    one, other = (run(experiment(kind, learners=2), tmp_path / name) for name in ("one", "other"))
    assert one == other
    again = experiment(kind, learners=2, pretrain={"weights": str(tmp_path / "one" / "pretrain" / "model.safetensors")})
    assert run(again, tmp_path / "again") == one
    assert not (tmp_path / "again" / "pretrain").exists()


@pytest.mark.parametrize("kind", ["rbm", "layerwise"])
def test_goes_on_after_a_stop_between_stages(kind: str, tmp_path: Path) -> None:
    asked = experiment(kind, task={"hidden": [10, 8, 8]})
    whole = run(asked, tmp_path / "whole")
    RunFolder(tmp_path / "stopped").create(asked, {})
    Pretraining(asked).simulate(0, tmp_path / "stopped")
    assert stages_done(tmp_path / "stopped")[0] == 1
    stopped = run_again(asked, tmp_path / "stopped", on="simulator", options=RunOptions(), resumed=True)
    assert stopped.plain() == whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rbm", "layerwise"])
def test_processes_agree_with_the_simulator_to_the_bit(kind: str, tmp_path: Path) -> None:
    settings = tmp_path / "it.toml"
    lines = ["[task]", *(f"{key} = {json.dumps(value)}" for key, value in TASK.items())]
    settings.write_text("\n".join([*lines, "[budget]", "minibatches = 20", "[pretrain]", f'kind = "{kind}"']))
    for on in ("simulator", "processes"):
        arguments = [str(settings), "--out", str(tmp_path / on), "--on", on, "--learners", "2"]
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert f"pretrain {kind} 1 of" in result.output
    for path in ("pretrain/model.safetensors", "model.safetensors"):
        one, other = (load_file(tmp_path / on / path) for on in ("simulator", "processes"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(tmp_path / "processes", 1) == losses(tmp_path / "simulator", 1)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec"])
def test_ranks_that_others_start_agree_with_the_simulator_to_the_bit(launcher: str, tmp_path: Path) -> None:
    settings = tmp_path / "it.toml"
    settings.write_text(config.dump(experiment(learners=2, budget={"minibatches": 20})))
    if launcher == "mpiexec":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed")
        started, on = [*find_mpiexec(), "-n", "2", *ROUNDELAY], "mpi"
    else:
        started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        started, on = [*started, "-m", "roundelay"], "processes"
    started += ["train", str(settings), "--out", str(tmp_path / "given"), "--on", on]
    done = subprocess.run(
        started, capture_output=True, text=True, timeout=180, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pretrain rbm 2 of 2") == 1, "one of them says so"
    train(settings, tmp_path / "simulator", on="simulator")
    for path in ("pretrain/model.safetensors", "model.safetensors"):
        one, other = (load_file(tmp_path / where / path) for where in ("given", "simulator"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(tmp_path / "given", 1) == losses(tmp_path / "simulator", 1), "its record is there, too"


def test_several_hosts_are_refused_with_advice(tmp_path: Path) -> None:
    settings = tmp_path / "it.toml"
    settings.write_text(config.dump(experiment()))
    arguments = [str(settings), "--out", str(tmp_path / "run"), "--hosts", "2", "--rendezvous", "127.0.0.1:29999"]
    arguments += ["--token", "secret"]
    with pytest.raises(SettingsError, match=r"pre-train on one host, .* --set pretrain.weights="):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_pretrained_leaves_no_folder_behind(tmp_path: Path) -> None:
    settings = tmp_path / "it.toml"
    settings.write_text(config.dump(experiment(task={"activation": "relu"})))
    with pytest.raises(SettingsError, match="sigmoid behind it, which 0 has not"):
        CliRunner().invoke(command, [str(settings), "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_layers_are_trained_at_the_scaled_rate() -> None:
    asked = experiment("layerwise", "averaging", learners=4, rate={"scale": "learners"})
    job = Pretraining(asked).job(0)
    assert job.optimizer(job.task.make_module()).param_groups[0]["lr"] == pytest.approx(4 * 0.05)


def test_weights_that_are_missing_or_another_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not pre-trained yet"):
        pretrained(experiment(), tmp_path)
    with pytest.raises(CheckpointError, match=r"pretrain.weights: .*nowhere"):
        pretrained(experiment(pretrain={"weights": str(tmp_path / "nowhere")}), None)
    run(experiment(pretrain={"epochs": 0.1}, budget={"minibatches": 1}), tmp_path / "run")
    weights = str(tmp_path / "run" / "pretrain" / "model.safetensors")
    with pytest.raises(CheckpointError, match="another model's"):
        train(experiment(task={"hidden": [9, 8]}, pretrain={"weights": weights}), on="simulator")
    with pytest.raises(CheckpointError, match=r"another model's: it has no 0\.bias"):
        train(experiment(task={"model": "lstm"}, pretrain={"weights": weights}), on="simulator")
