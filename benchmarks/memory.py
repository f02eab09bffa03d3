"""Measure the peak memory of extracting and of reading features, for 1 hour and for 20.

Each case is its own process.  There are three figures, since memory-mapped files can be counted in two ways:
``peak_mb`` is the operating system's largest resident size (ru_maxrss), which includes pages of mapped files;
``anonymous_mb`` is the memory of this process alone (RssAnon at its largest, sampled); ``mapped_mb`` is the pages of
mapped files (RssFile), which the operating system may drop at any time.

python benchmarks/memory.py [--hours 1 20] [--epochs 1]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch


class Sampler(threading.Thread):
    """Read this process's memory every hundredth of a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest = {"RssAnon": 0, "RssFile": 0}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.01):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.largest:
                    self.largest[name] = max(self.largest[name], int(value.split()[0]))

    def report(self) -> dict[str, float]:
        self._over.set()
        self.join()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        named = {"peak_mb": peak, "anonymous_mb": self.largest["RssAnon"], "mapped_mb": self.largest["RssFile"]}
        return {name: round(kilobytes / 1024, 1) for name, kilobytes in named.items()}


def extract_some(folder: Path, hours: float) -> None:
    """Run the real extraction over hours of audio: the same minute of noise, divided into segments many times."""
    import soundfile

    from roundelay.corpora.data_directory import Utterance
    from roundelay.speech.features.extraction import Extraction, list_copies
    from roundelay.speech.features.mel_features import FeatureSettings

    noise = 0.1 * np.random.default_rng(0).standard_normal(16000 * 60)
    soundfile.write(folder / "noise.wav", noise, 16000, subtype="PCM_16")
    count = int(hours * 3600 / 5)
    utterances = [
        Utterance(f"u{i:06d}", folder / "noise.wav", f"s{i % 100}", ("A",), 0, float(i % 50), float(i % 50 + 5))
        for i in range(count)
    ]
    Extraction(folder / "features", list_copies(utterances, []), FeatureSettings(), "speaker").run(2)


def read_some(folder: Path, epochs: int) -> None:
    """Read every minibatch of frames."""
    from roundelay.speech.features.array_store import ArrayStore
    from roundelay.speech.features.minibatches import FrameMinibatches

    minibatches = FrameMinibatches(ArrayStore(folder / "features"), ArrayStore(folder / "targets"), 256)
    for epoch in range(epochs):
        for index in range(len(minibatches)):
            minibatches.load(epoch, index)


def work(what: str, folder: Path, hours: float, epochs: int) -> None:
    torch.set_num_threads(1)
    sampler = Sampler()
    sampler.start()
    extract_some(folder, hours) if what == "extract" else read_some(folder, epochs)
    print(json.dumps(sampler.report()))


def targets(folder: Path) -> None:
    from roundelay.speech.features.array_store import ArrayStore, write_store

    random = np.random.default_rng(0)
    store = ArrayStore(folder / "features")
    rows = ((name, random.integers(0, 300, int(n))) for name, n in zip(store.ids, store.lengths, strict=True))
    write_store(folder / "targets", rows, dim=0, dtype="int32")


def measure(hours: float, epochs: int) -> dict[str, dict[str, float]]:
    result = {}
    with tempfile.TemporaryDirectory() as name:
        for what in ("extract", "read"):
            command = [sys.executable, __file__, "--work", what, "--folder", name, "--hours", str(hours)]
            command += ["--epochs", str(epochs)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result[what] = json.loads(done.stdout)
            if what == "extract":
                targets(Path(name))
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, nargs="+", default=[1.0, 20.0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--work")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.folder, arguments.hours[0], arguments.epochs)
        return
    report = {f"{hours:g} h": measure(hours, arguments.epochs) for hours in arguments.hours}
    first, *_, last = report.values()
    ratios = {what: {name: round(last[what][name] / first[what][name], 3) for name in first[what]} for what in first}
    print(json.dumps({**report, "ratio of last to first": ratios}, indent=1))


if __name__ == "__main__":
    main()
