"""Compare the speed of reading minibatches with the speed of a 6x1024 DNN that trains on them, on one core, in turn.

python benchmarks/reading.py [--hours 1]
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from roundelay.speech.features.array_store import ArrayStore, write_store
from roundelay.speech.features.minibatches import ChunkMinibatches, FrameMinibatches, Minibatches, UtteranceMinibatches

DIM, SENONES, CONTEXT, SIZE, ROUNDS = 40, 300, 10, 256, 5


def stores(folder: Path, hours: float) -> tuple[ArrayStore, ArrayStore]:
    """Write random features and targets: utterances of 3 to 8 seconds."""
    random = np.random.default_rng(0)
    lengths = []
    while sum(lengths) < hours * 360_000:
        lengths.append(int(random.integers(300, 800)))
    features = write_store(
        folder / "features",
        ((f"u{i}", random.standard_normal((n, DIM), np.float32)) for i, n in enumerate(lengths)),
        dim=DIM,
    )
    targets = write_store(
        folder / "targets",
        ((f"u{i}", random.integers(0, SENONES, n)) for i, n in enumerate(lengths)),
        dim=0,
        dtype="int32",
    )
    return features, targets


def training() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a training step of a network with six layers of 1024."""
    sizes = [DIM * (2 * CONTEXT + 1), *[1024] * 6]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, SENONES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def rate_of_reading(minibatches: Minibatches, epoch: int) -> float:
    frames, begin = 0, time.perf_counter()
    for index in range(min(len(minibatches), 200)):
        frames += minibatches.load(epoch, index).frames
    return frames / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=1.0)
    hours = parser.parse_args().hours
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        features, targets = stores(Path(folder), hours)
        kinds: dict[str, Minibatches] = {
            "frames": FrameMinibatches(features, targets, SIZE, left=CONTEXT, right=CONTEXT),
            "chunks": ChunkMinibatches(features, targets, 64, length=21, left=5, right=5),
            "utterances": UtteranceMinibatches(features, lambda _: [1, 2, 3], 16),
        }
        step, batch = training(), kinds["frames"].load(0, 0)
        reading: dict[str, list[float]] = {kind: [] for kind in kinds}
        consuming: list[float] = []
        for turn in range(ROUNDS):
            for kind, minibatches in kinds.items():
                reading[kind].append(rate_of_reading(minibatches, turn))
            begin = time.perf_counter()
            for _ in range(8):
                step(batch.inputs, batch.targets)
            consuming.append(8 * batch.frames / (time.perf_counter() - begin))
        fastest = max(consuming)
        report = {
            kind: {
                "frames_per_second": round(float(np.median(values))),
                "ratio": round(float(np.median(values)) / fastest, 1),
            }
            for kind, values in reading.items()
        }
        print(json.dumps({"hours": hours, "network_frames_per_second": round(fastest), "reading": report}, indent=1))


if __name__ == "__main__":
    main()
