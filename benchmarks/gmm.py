"""Train monophones with our code and with kaldi-hmm-gmm: same features, lexicon, iterations and Gaussians.

    python benchmarks/gmm.py                          artificial speech with a known alignment
    python benchmarks/gmm.py --an4 FOLDER             and AN4, against the alignments of its pack

kaldi-hmm-gmm 1.1.4 works with kaldifst 1.7.17 only, so it gets its own virtual environment in a temporary folder.
Ratios of processor time are printed: wall time says little on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.speech.gmm.corpus_passes import UtteranceSet
from roundelay.speech.gmm.front_end import FrontEnd
from roundelay.speech.gmm.gmm_training import GmmSettings, Trainer, mono_realignments, train_monophones
from roundelay.speech.gmm.hmm import Spelling
from roundelay.speech.gmm.hmm_gmm import ModelLexicon
from roundelay.speech.worker_pool import WorkerPool

Array = np.ndarray[Any, np.dtype[Any]]
REQUIREMENTS = ("kaldi-hmm-gmm==1.1.4", "kaldifst==1.7.17", "numpy")


def make_environment(folder: Path) -> Path | None:
    """Make the virtual environment; return None if that fails, for example without a package index."""
    python = folder / "environment" / "bin" / "python"
    commands = (
        [sys.executable, "-m", "venv", str(folder / "environment")],
        [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS],
        [str(python), "-c", "import kaldi_hmm_gmm"],
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, timeout=240, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
    return python


class Task:
    """Utterances with final features, transcripts, a lexicon, and the true phone of every frame."""

    def __init__(
        self, features: dict[str, Array], words: dict[str, list[str]], lexicon: ModelLexicon, truth: dict[str, Array]
    ) -> None:
        self.features, self.words, self.lexicon, self.truth = features, words, lexicon, truth

    def right(self, phones: dict[str, Array]) -> float:
        """Share of frames with the true phone."""
        same = [np.mean(phones[u] == self.truth[u]) * len(self.truth[u]) for u in self.truth]
        return float(sum(same) / sum(map(len, self.truth.values())))


def made_up(num_utterances: int = 60, seed: int = 0) -> Task:
    """Speech made by an HMM of eight phones whose states have random means."""
    rng = np.random.default_rng(seed)
    names = ["sil", *"abcdefg"]
    variants = {f"W{i}": [tuple(rng.choice(names[1:], rng.integers(1, 5)))] for i in range(12)}
    lexicon = ModelLexicon(names, {word: [tuple(map(str, p)) for p in prons] for word, prons in variants.items()})
    means = rng.normal(0, 1.0, (len(names), 3, 12))
    features, words, truth = {}, {}, {}
    for n in range(num_utterances):
        said = [str(w) for w in rng.choice(list(variants), rng.integers(2, 6))]
        phones = [0]
        for word in said:
            phones += [names.index(p) for p in lexicon.pronunciations[word][0]]
            phones += [0] * int(rng.random() < 0.3)
        states = [(p, s) for p in phones for s in range(3) for _ in range(rng.integers(2, 6))]
        centres = np.array([means[p, s] for p, s in states])
        name = f"u{n:03d}"
        features[name] = (centres + rng.standard_normal(centres.shape)).astype(np.float32)
        words[name], truth[name] = said, np.array([p for p, _ in states])
    return Task(features, words, lexicon, truth)


def an4(folder: Path, limit: int) -> Task:
    """AN4's training part with our cepstra and deltas, normalised by speaker; "true" is what the pack says."""
    import soundfile

    from roundelay.speech.features.mel_features import FeatureSettings, extract
    from roundelay.speech.language.lexicon import Lexicon

    def table(name: str) -> dict[str, list[str]]:
        return {line.split()[0]: line.split()[1:] for line in (folder / name).read_text().splitlines()}

    given = Lexicon.read(folder / "lexicon.txt")
    lexicon = ModelLexicon(given.phones, given.pronunciations)
    text = dict(list(table("train/text").items())[:limit])
    paths, speakers = table("wav.scp"), {u: s[0] for u, s in table("utt2spk").items()}
    stored = {u: extract(soundfile.read(folder / paths[u][0], dtype="float32")[0], FeatureSettings()) for u in text}
    front_end = FrontEnd()
    corpus = UtteranceSet.open(stored, text, speakers, Spelling(lexicon), front_end)
    features = {u: corpus.item(u).frames(front_end) for u in text}
    truth = {u: labels for u, labels in _shipped(folder, lexicon.phones).items() if u in text}
    return Task(features, text, lexicon, truth)


def _shipped(folder: Path, phones: list[str]) -> dict[str, Array]:
    found = {}
    with gzip.open(folder / "align" / "states.txt.gz", "rt") as lines:
        for line in lines:
            utterance, *states = line.split()
            labels: list[int] = []
            for state in states:
                name, frames = state.rsplit(":", 1)
                phone = re.split(r"\[|_s\d", name)[0].upper()
                labels += [phones.index("sil" if phone == "SIL" else phone)] * int(frames)
            found[utterance] = np.array(labels)
    return found


def ours(task: Task, iterations: int, num_gaussians: int) -> dict[str, float]:
    """Train and align with our own code in this process."""
    begin, cpu = time.perf_counter(), time.process_time()
    settings = GmmSettings(input="final", mono_iterations=iterations, mono_gaussians=num_gaussians)
    front_end = FrontEnd(input="final")
    with WorkerPool(1) as workers:
        corpus = UtteranceSet.open(task.features, task.words, None, Spelling(task.lexicon), front_end)
        trainer = Trainer(corpus, workers, settings, None)
        model = train_monophones(trainer, front_end, len(task.lexicon.phones))
        trainer.realign(model)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    paths = trainer.corpus.alignments
    phones = {u: np.repeat(a.phones, np.diff(a.starts)) for u, a in paths.items()}
    return {
        "right": task.right(phones),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "num_gaussians": model.gmm.num_gaussians,
    }


def theirs(task: Task, python: Path, folder: Path, iterations: int, num_gaussians: int) -> dict[str, float]:
    """Train and align with kaldi-hmm-gmm in its own environment."""
    names = list(task.features)
    word_ids = {word: i for i, word in enumerate(task.lexicon.pronunciations, 1)}
    phone_ids = {phone: i for i, phone in enumerate(task.lexicon.phones, 1)}
    prons = [(word_ids[w], [phone_ids[p] for p in ps]) for w, vs in task.lexicon.pronunciations.items() for ps in vs]
    np.savez(
        folder / "input.npz",
        features=np.concatenate([task.features[u] for u in names]),
        lengths=[len(task.features[u]) for u in names],
        words=[word_ids[w] for u in names for w in task.words[u]],
        num_words=[len(task.words[u]) for u in names],
        lexicon_words=[word for word, _ in prons],
        phones=[phone for _, phones in prons for phone in phones],
        num_phones=[len(phones) for _, phones in prons],
        phone_count=len(task.lexicon.phones),
        iterations=iterations,
        num_gaussians=num_gaussians,
        realign=list(mono_realignments(iterations)),
    )
    script = Path(__file__).with_name("gmm_kaldi.py")
    command = [str(python), str(script), str(folder / "input.npz"), str(folder / "output.npz")]
    subprocess.run(command, check=True, capture_output=True)
    result = np.load(folder / "output.npz")
    parts = np.split(result["phones"] - 1, np.cumsum([len(task.features[u]) for u in names])[:-1])
    seconds, cpu_seconds = result["times"].tolist()
    return {
        "right": task.right(dict(zip(names, parts, strict=True))),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "num_gaussians": int(result["num_gaussians"]),
    }


def compare_on_made_up_speech(python: Path, folder: Path) -> tuple[float, float]:
    """Give the shares of frames with the true phone, ours and theirs."""
    task = made_up()
    return ours(task, 14, 60)["right"], theirs(task, python, folder, 14, 60)["right"]


def main() -> None:
    """Run the comparison and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--an4", type=Path, help="folder of the AN4 corpus")
    parser.add_argument("--utterances", type=int, default=740, help="how many of AN4's training utterances")
    parser.add_argument("--python", type=Path, help="an environment that has kaldi-hmm-gmm already")
    arguments = parser.parse_args()
    tasks = {"made-up": (made_up(), 14, 60)}
    if arguments.an4:
        tasks["an4"] = (an4(arguments.an4, arguments.utterances), 22, 600)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = arguments.python or make_environment(folder)
        if python is None:
            sys.exit(f"cannot make an environment with {' '.join(REQUIREMENTS)}")
        report: dict[str, Any] = {}
        for title, (task, iterations, num_gaussians) in tasks.items():
            mine = ours(task, iterations, num_gaussians)
            other = theirs(task, python, folder, iterations, num_gaussians)
            ratio = mine["cpu_seconds"] / other["cpu_seconds"]
            report[title] = {"ours": mine, "kaldi-hmm-gmm": other, "cpu_ratio": round(ratio, 3)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
