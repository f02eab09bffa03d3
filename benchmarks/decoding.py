"""Measure how many times faster than real time a run decodes on one core, and what a much wider beam gains.

    python benchmarks/decoding.py RUN [--data DATA] [--split dev] [--language bigram]

Network and search are timed in seconds of one core (``time.process_time``, one thread), utterance by utterance, the
usual and the wide beam in turn.  Fails if the usual beam is slower than 50 times real time, or if its word error
rate is more than 0.5 points from the wide beam's.  Weights are those that were chosen on dev; decode with RUN first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import Pruning, acoustic_scores, best_path, to_words
from roundelay.speech.decoding.decoding_data import open_split
from roundelay.speech.decoding.grammar import find_grammar
from roundelay.speech.decoding.recogniser import Recogniser
from roundelay.speech.decoding.split_decoding import DecodeSettings, choose_weights
from roundelay.speech.decoding.word_error_rate import Wer

WIDE = Pruning(22.0, 50_000)
LEAST, MOST_LOST = 50.0, 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="dev")
    parser.add_argument("--language", default="bigram")
    parser.add_argument("--beam", type=float, default=DecodeSettings().pruning.beam)
    parser.add_argument("--max-active", type=int, default=DecodeSettings().pruning.max_active)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = measure(
        options.run, options.data, options.split, options.language, Pruning(options.beam, options.max_active)
    )
    print(json.dumps(report, indent=1))
    fast = report["times_real_time"] >= LEAST
    as_good = abs(report["wer"] - report["wide_wer"]) <= MOST_LOST
    return 0 if fast and as_good else 1


def measure(run: Path, data: Path | None, split: str, language: str, usual: Pruning) -> dict[str, float]:
    bundle = Bundle.open(run)
    grammar = find_grammar(bundle, language)
    tuned = choose_weights(bundle, grammar, DecodeSettings())
    loaded = Recogniser(run, grammar)
    priors = loaded.log_priors(tuned.priors)
    graph = loaded.graph(tuned.weights.penalty, False)
    spent = {"network": 0.0, "search": 0.0, "wide": 0.0}
    heard: dict[str, dict[str, list[str]]] = {"search": {}, "wide": {}}
    with open_split(bundle, data or bundle.data, split) as material:
        loaded.scorer(material.inputs[material.utterances[0]])  # the first call sets things up
        seconds = 0.0
        for i, name in enumerate(material.utterances):
            features = material.inputs[name]
            seconds += len(features) * bundle.feature_settings.frame_shift_seconds
            start = time.process_time()
            scores = acoustic_scores(loaded.scorer(features), priors, tuned.weights)
            spent["network"] += time.process_time() - start
            for kind in ("search", "wide") if i % 2 else ("wide", "search"):
                start = time.process_time()
                best = best_path(graph, scores, usual if kind == "search" else WIDE)
                spent[kind] += time.process_time() - start
                heard[kind][name] = to_words(best.words, loaded.lexicon.words)
        wers = {kind: Wer.from_words(material.transcripts, found).wer for kind, found in heard.items()}
    return {
        "audio_seconds": seconds,
        "network_seconds": spent["network"],
        "search_seconds": spent["search"],
        "times_real_time": seconds / (spent["network"] + spent["search"]),
        "wide_times_real_time": seconds / (spent["network"] + spent["wide"]),
        "search_to_wide": spent["search"] / spent["wide"],
        "wer": wers["search"],
        "wide_wer": wers["wide"],
        "beam": usual.beam,
        "max_active": usual.max_active,
        "scale": tuned.weights.scale,
    }


if __name__ == "__main__":
    sys.exit(main())
