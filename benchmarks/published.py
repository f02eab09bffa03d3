"""Predict published speed-up: python benchmarks/published.py [--json].

Su, Chen and Xu (2015, arXiv 1507.01239) averaged models of 40 million parameters every 10 minibatches on up to 32
K20 GPUs, and published minutes per epoch.  Four numbers of a machine are fitted to their runs on up to 8 GPUs, both by
all-reduce and by butterfly, with the simulator as the model: it runs the file of the strategy, `Averaging`.  The same
machine then predicts 16 and 32 GPUs.  Nothing is fitted to a speed-up, and nothing to more than 8 GPUs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence

from least_squares import fit
from roundelay.planning.timing import time_strategy
from roundelay.runtimes.cluster import Cluster, Compute, NetworkLink
from roundelay.strategies import Averaging

MINUTES: dict[str, dict[int, float]] = {
    "all-reduce": {1: 254.5, 2: 183.4, 4: 96.0, 8: 51.0, 16: 27.3, 32: 15.24},
    "butterfly": {2: 175.6, 4: 90.0, 8: 46.8, 16: 25.2, 32: 14.12},
}
"""Per epoch, by GPUs: the authors' timing file, training in all.  One GPU does not average."""
PERIOD_20 = 10.07
"""Published speed-up on 16 GPUs that average every 20 minibatches by all-reduce; not used in the fit."""
HOURS, HELD_OUT, FRAMES_PER_SECOND = 300, 0.1, 100
EPOCH_FRAMES = HOURS * 3600 * FRAMES_PER_SECOND * (1 - HELD_OUT)
PARAMETERS = (440 + 1) * 2048 + 5 * (2048 + 1) * 2048 + (2048 + 1) * 8806
START = {"seconds per frame": 2e-4, "seconds per epoch": 60.0, "latency": 0.1, "bandwidth": 1e9}
"""Where the fit begins."""

Point = tuple[str, int]
CALIBRATION: list[Point] = [(how, gpus) for how, row in MINUTES.items() for gpus in row if gpus <= 8]
PREDICTED: list[Point] = [(how, gpus) for how, row in MINUTES.items() for gpus in row if gpus > 8]


def machine(numbers: Mapping[str, float]) -> Cluster:
    """Make the cluster of these four numbers; a node has one GPU, and the model 160 MB."""
    return Cluster(
        name="K20 with MPI",
        nodes=32,
        learners_per_node=1,
        frames=1024,
        model_bytes=4.0 * PARAMETERS,
        compute=Compute(seconds=0.0, seconds_per_frame=numbers["seconds per frame"]),
        inter_node=NetworkLink(latency_seconds=0.0, bandwidth=numbers["bandwidth"]),
        operation_seconds=numbers["latency"],
        epoch_seconds=numbers["seconds per epoch"],
    )


def minutes(cluster: Cluster, how: str, gpus: int, period: int = 10) -> float:
    """Predict the minutes of an epoch."""
    strategy = Averaging(period=period, topology="butterfly" if how == "butterfly" else "all-reduce")
    return time_strategy(strategy, cluster, gpus).epoch_seconds(EPOCH_FRAMES, cluster.epoch_seconds) / 60


def calibrate(points: Sequence[Point] = CALIBRATION) -> Cluster:
    """Fit the machine to published runs."""
    numbers = fit(
        lambda guess: [minutes(machine(guess), how, gpus) for how, gpus in points],
        [MINUTES[how][gpus] for how, gpus in points],
        START,
    )
    return machine(numbers)


def predict(cluster: Cluster) -> dict[Point, float]:
    """Predict speed-up over the published run on one GPU."""
    return {(how, gpus): MINUTES["all-reduce"][1] / minutes(cluster, how, gpus) for how, gpus in PREDICTED}


def published(how: str, gpus: int) -> float:
    """Return the published speed-up."""
    return MINUTES["all-reduce"][1] / MINUTES[how][gpus]


def leave_one_out(whole: Mapping[Point, float]) -> dict[Point, float]:
    """Return the largest relative change of a prediction if one calibration point is left out."""
    found = {}
    for left in CALIBRATION:
        without = predict(calibrate([point for point in CALIBRATION if point != left]))
        found[left] = max(abs(without[point] / whole[point] - 1) for point in whole)
    return found


def main() -> None:
    cluster = calibrate()
    whole = predict(cluster)
    change = leave_one_out(whole)
    longer = MINUTES["all-reduce"][1] / minutes(cluster, "all-reduce", 16, period=20)
    if "--json" in sys.argv:
        speedups = [
            {"by": how, "gpus": gpus, "predicted": whole[how, gpus], "published": published(how, gpus)}
            for how, gpus in PREDICTED
        ]
        left = [{"by": how, "gpus": gpus, "change": share} for (how, gpus), share in change.items()]
        print(json.dumps({"machine": dataclasses.asdict(cluster), "speedups": speedups, "left out": left}))
        return
    compute, between = cluster.compute, cluster.inter_node
    print(
        f"fitted to {len(CALIBRATION)} runs: {1e6 * compute.seconds_per_frame:.1f} us per frame, "
        f"{cluster.epoch_seconds:.0f} s per epoch, {cluster.operation_seconds:.3f} s per average, "
        f"{between.bandwidth / 1e6:.0f} MB/s"
    )
    for how, gpus in CALIBRATION:
        print(f"{how:10s} {gpus:2d} GPUs  {minutes(cluster, how, gpus):6.1f} min, published {MINUTES[how][gpus]:6.1f}")
    for (how, gpus), speedup in whole.items():
        then = published(how, gpus)
        print(f"{how:10s} {gpus:2d} GPUs  speed-up {speedup:5.2f}, published {then:5.2f}  {speedup / then - 1:+.1%}")
    print(f"all-reduce 16 GPUs, every 20 minibatches: {longer:.2f} predicted, {PERIOD_20} published")
    for (how, gpus), share in change.items():
        print(f"without {how:10s} {gpus:2d}: predictions change by at most {share:.1%}")


if __name__ == "__main__":
    main()
