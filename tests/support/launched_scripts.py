"""Scripts that `roundelay launch` starts in tests, and what became of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOOP = '''
import json, os, signal, sys, time
import torch, roundelay
from roundelay.strategies import STRATEGIES
job = json.loads(sys.argv[1])
me, again = int(os.environ["ROUNDELAY_LEARNER"]), os.path.exists("died")
notes = open(f"notes-{me}.txt", "a", buffering=1)

def die(where, count=0):
    """Die where the test says so, once."""
    if me == job.get("victim", -1) and where == job.get("where") and count == job.get("count", 0):
        if not os.path.exists("died"):
            open("died", "w").close()
            exec(job.get("how", "os.kill(os.getpid(), signal.SIGKILL)"))

die("start")
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
learner = roundelay.join(
    model, optimizer, STRATEGIES[job["strategy"]](**job.get("settings", {})), checkpoints=job.get("checkpoints")
)
die("joined")
total = job.get("minibatches", 60)
numbers = torch.arange(float(total)).unsqueeze(1)
loader = torch.utils.data.DataLoader(numbers, batch_size=1, num_workers=job.get("workers", 0))
epochs = learner.epochs(job["epochs"]) if job.get("counted", True) else range(job["epochs"])
for epoch in epochs:
    for count, x in enumerate(learner.share(loader)):
        die("loop", count if not epoch else -1)
        optimizer.zero_grad()
        (model(x / total) - 1).square().mean().backward()
        time.sleep(job.get("seconds", 0.003))
        die("before step", count if not epoch else -1)
        optimizer.step()
        notes.write(f"{epoch} {int(x)}\\n")
        die("after step", count if not epoch else -1)
    die("between", epoch)
die("end")
learner.close()
die("closed")
weights = [p.detach().flatten().tolist() for p in model.parameters()]
print(json.dumps({"learner": me, "learners": learner.num_learners, "weights": weights}))
'''


def write(folder: Path, text: str = LOOP) -> Path:
    """Write a script."""
    script = folder / "script.py"
    script.write_text(text)
    return script


def start(script: Path, job: dict[str, Any], *options: str) -> subprocess.Popen[str]:
    """Launch a script in its folder, in a process of its own."""
    command = [sys.executable, "-m", "roundelay", "launch", script.name, *options, "--", json.dumps(job)]
    return subprocess.Popen(
        command, cwd=script.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )


def finish(process: subprocess.Popen[str], seconds: float = 240.0) -> tuple[int, str, str]:
    """Return the exit status and what was printed."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, out, err


def trained(folder: Path) -> dict[int, list[int]]:
    """Return the minibatches of each epoch for which a learner has finished a step, in order."""
    found: dict[int, list[int]] = {}
    for path in folder.glob("notes-*.txt"):
        for line in path.read_text().splitlines():
            epoch, number = map(int, line.split())
            found.setdefault(epoch, []).append(number)
    return {epoch: sorted(numbers) for epoch, numbers in sorted(found.items())}
