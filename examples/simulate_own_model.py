"""Which strategy fits your own model on a cluster that you do not have?  All of this runs on one processor.

python examples/simulate_own_model.py OUT
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import roundelay


def make_model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def error(outputs, targets):
    return {"error": (outputs.argmax(1) != targets).float().mean()}


torch.manual_seed(0)
inputs = torch.randn(4096 + 512, 16)
targets = (inputs @ torch.randn(16, 4)).argmax(1)
loader = DataLoader(TensorDataset(inputs[:4096], targets[:4096]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(inputs[4096:], targets[4096:]), batch_size=128)
out, loss = Path(sys.argv[1] if len(sys.argv) > 1 else "simulated"), nn.functional.cross_entropy
machine = {"latency_seconds": 50e-6, "bandwidth": 1e9}  # between any two learners
also = {"held_out": held_out, "evaluate": error, "cluster": machine, "gradient_seconds": 0.01}

# 64 learners, in virtual time: learning, waiting, traffic, and a page about it.
run = roundelay.simulate(make_model, loader, loss, "bmuf", learners=64, epochs=8, out=out / "run", **also)
print(f"{run.rule}\nerror {run.scores['error']:.3f} after {run.seconds:.2f} virtual seconds; {run.report()}")

# A strategy of your own, by its file and class, on the same cluster.
own = f"{Path(__file__).parent / 'own_strategy.py'}:AverageOften"
mine = roundelay.simulate(make_model, loader, loss, own, learners=8, epochs=4, **also)
print(f"own strategy: error {mine.scores['error']:.3f} after {mine.seconds:.2f} virtual seconds")

# Strategies and numbers of learners under one budget, with an answer in words.
task = roundelay.ModelTask(make_model, loader, loss, held_out=held_out, evaluate=error)
study = {
    "strategies": ["synchronous", "averaging"], "learners": [4], "target": "error=0.2",
    "clusters": {"ethernet": machine}, "experiment": {"budget": {"epochs": 4}},
}  # fmt: skip
found = roundelay.compare(study, out / "study", task=task)
print(f"{len(found.computed)} runs compared: {found.report}")

# Which strategy reaches the target first on more learners, by the time alone.
for ranking in run.plan(learners=[64], target="error=0.2", strategies=["synchronous", "bmuf", "adpsgd"]).rankings:
    print(f"{ranking.learners} learners: {', '.join(row.strategy for row in ranking.rows)}")
