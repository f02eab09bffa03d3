"""A Roundelay strategy in Lightning's Trainer."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from framework_venv import run_there
from roundelay.errors import MissingExtra

MODULE = '''
import json, sys, warnings
warnings.filterwarnings("ignore")
import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from roundelay.errors import SettingsError
from roundelay.lightning import RoundelayStrategy

torch.manual_seed(1)
X = torch.randn(132, 4)
DATA = TensorDataset(X, X.sin().sum(1, keepdim=True))


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.validated, self.steps = [], 0

    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.steps += 1
        self.log("train", loss, sync_dist=True, on_step=True)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self):
        self.validated.append(total(self.parameters()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Two(Net):
    """Two optimizers, stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.AdamW(self.net[k].parameters(), lr=0.01) for k in (0, 3)]


class Failing(Net):
    def training_step(self, batch, index):
        if index == 3 and self.global_rank == 1:
            raise RuntimeError("nothing works here")
        return super().training_step(batch, index)


def total(parameters):
    return float(sum(each.detach().double().sum() for each in parameters))


def fit(model, strategy, epochs=3, path=None, **more):
    options = dict(accelerator="cpu", devices=2, logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = pl.Trainer(strategy=strategy, max_epochs=epochs, **options, **more)
    trainer.fit(model, DataLoader(DATA, 8, shuffle=True), DataLoader(DATA, 64), ckpt_path=path)
    return trainer
'''

FITS = (
    MODULE
    + """
said = {}
for name in "synchronous", "bmuf", "adpsgd", "easgd":
    model, keep = Net(), pl.callbacks.ModelCheckpoint(dirpath="kept-" + name, save_last=True)
    strategy = "roundelay-" + name if name == "adpsgd" else RoundelayStrategy(name)
    clipping = {"precision": "bf16-mixed"} if name == "bmuf" else {}
    trainer = fit(model, strategy, callbacks=[keep], gradient_clip_val=1.0, accumulate_grad_batches=2, **clipping)
    saved = torch.load(f"kept-{name}/last.ckpt", weights_only=False)["state_dict"]
    said[name] = {
        "loss": float(trainer.callback_metrics["loss"]), "steps": [model.steps, trainer.global_step],
        "weights": [total(model.parameters()), model.validated[-1],
                    total(saved[key] for key, _ in model.named_parameters())],
    }
again = Net()
fit(again, RoundelayStrategy("synchronous"), epochs=4, path="kept-synchronous/last.ckpt")
said["resumed"] = again.steps
two = Two()
fit(two, RoundelayStrategy("bmuf", block=4))
said["two"] = total(two.parameters())
every = [None, None]
torch.distributed.all_gather_object(every, said)
if torch.distributed.get_rank() == 0:
    print(json.dumps(every))
"""
)


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a machine that has other things to do
def test_validation_checkpoint_and_end_have_the_consensus(tmp_path: Path) -> None:
    (tmp_path / "fits.py").write_text(FITS)
    one, two = json.loads(run_there("fits.py", folder=tmp_path, learners=2).splitlines()[-1])
    for name in ("synchronous", "bmuf", "adpsgd", "easgd"):
        weights = one[name]["weights"] + two[name]["weights"]
        assert weights == pytest.approx([weights[0]] * 6, abs=1e-5), name
        assert one[name]["steps"] == [27, 15], name  # 9 minibatches an epoch are 5 steps
        assert one[name]["loss"] < 3.0, name  # it begins at 4
    assert (one["resumed"], two["resumed"]) == (9, 9)
    assert one["two"] == pytest.approx(two["two"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a machine that has other things to do
def test_who_fails_is_named_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        MODULE
        + """
try:
    RoundelayStrategy("bmuf", blocks=4)
except SettingsError as error:
    print(error)
try:
    fit(Failing(), RoundelayStrategy("bmuf", block=4))
except Exception as error:
    print("STOPPED", type(error).__name__, error)
"""
    )
    said = run_there("fails.py", folder=tmp_path, learners=2)
    assert "strategy: unknown key 'blocks'; did you mean 'block'?" in said
    assert "STOPPED RuntimeError nothing works here" in said
    assert said.count("STOPPED") == 2  # the other one by its strategy, or by Lightning's own collectives


def test_lightning_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "roundelay.lightning", raising=False)
    with pytest.raises(MissingExtra, match=r"\[lightning\]"):
        importlib.import_module("roundelay.lightning")
