"""Compare feature extraction with kaldi-native-fbank, on one core, in turn; print ratios of best times.

python benchmarks/features.py
"""

from __future__ import annotations

import json
import time

import kaldi_native_fbank as knf
import numpy as np
import numpy.typing as npt
import torch

from roundelay.speech.features.mel_features import FeatureSettings, extract

SECONDS, ROUNDS = 100, 7
CASES = {
    "fbank40": FeatureSettings(),
    "fbank80": FeatureSettings(num_bins=80),
    "mfcc13": FeatureSettings(kind="mfcc", num_bins=23),
}


def theirs(samples: npt.NDArray[np.float32], settings: FeatureSettings) -> npt.NDArray[np.float32]:
    options = knf.FbankOptions() if settings.kind == "fbank" else knf.MfccOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = settings.snip_edges
    options.mel_opts.num_bins = settings.num_bins
    if settings.kind == "mfcc":
        options.num_ceps, options.use_energy = settings.num_ceps, settings.use_energy
    computer = (knf.OnlineFbank if settings.kind == "fbank" else knf.OnlineMfcc)(options)
    computer.accept_waveform(settings.rate, samples * 32768)
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def theirs_without_copying(samples: npt.NDArray[np.float32], settings: FeatureSettings) -> None:
    """Only compute: the time of a caller that takes all frames at once."""
    options = knf.FbankOptions() if settings.kind == "fbank" else knf.MfccOptions()
    options.frame_opts.dither = 0
    options.mel_opts.num_bins = settings.num_bins
    computer = (knf.OnlineFbank if settings.kind == "fbank" else knf.OnlineMfcc)(options)
    computer.accept_waveform(settings.rate, samples * 32768)
    computer.input_finished()


def main() -> None:
    torch.set_num_threads(1)
    samples = (0.1 * np.random.default_rng(0).standard_normal(16000 * SECONDS)).astype(np.float32)
    report = {}
    for name, settings in CASES.items():
        difference = float(np.abs(extract(samples, settings) - theirs(samples, settings)).max())
        times: dict[str, list[float]] = {"ours": [], "theirs": [], "theirs_computing_only": []}
        for _ in range(ROUNDS):
            for member, call in (
                ("ours", extract),
                ("theirs", theirs),
                ("theirs_computing_only", theirs_without_copying),
            ):
                begin = time.perf_counter()
                call(samples, settings)
                times[member].append(time.perf_counter() - begin)
        best = {member: min(values) for member, values in times.items()}
        report[name] = {
            "milliseconds": {member: round(1000 * value, 1) for member, value in best.items()},
            "times_as_fast": round(best["theirs"] / best["ours"], 2),
            "times_as_fast_computing_only": round(best["theirs_computing_only"] / best["ours"], 2),
            "largest_difference": round(difference, 6),
        }
    print(json.dumps({"seconds_of_audio": SECONDS, "cases": report}, indent=1))


if __name__ == "__main__":
    main()
