"""A run that decodes tones: prepared, trained for a moment, and written as training writes one."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tomli_w
import torch
from torch.nn import functional

import tone_corpus
from roundelay.models import AcousticModel, build_model
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import write_bundle
from roundelay.speech.decoding.split_decoding import DecodeSettings
from roundelay.speech.preparation.language_stage import LanguageSettings
from roundelay.speech.preparation.pipeline import prepare
from roundelay.speech.preparation.prepared_data import PreparedData, open_prepared

SETTINGS = replace(tone_corpus.SETTINGS, language=LanguageSettings(ctc=True))
_kept: list[tempfile.TemporaryDirectory[str]] = []  # until the end
MODEL = {"name": "dnn", "preset": "tiny"}
FIXED = DecodeSettings(scale=0.3, penalty=0.0, prior=0.5)
"""Weights that need no tuning."""


@functools.cache
def place() -> Path:
    """Make ``corpus``, ``data`` and ``run`` once for all tests of a session; copy what you spoil."""
    folder = tempfile.TemporaryDirectory(prefix="roundelay-tests-")
    _kept.append(folder)
    root = Path(folder.name).resolve()
    make_run(make_data(root), root / "run")
    return root


def make_corpus(folder: Path, test: int = 4) -> Path:
    """Write a corpus with train, dev and test; the words of test are drawn otherwise than those of dev."""
    tone_corpus.make(folder, train=16, dev=4)
    random = np.random.default_rng(5)
    (folder / "test").mkdir()
    rows = []
    for i in range(test):
        words = [str(word) for word in random.choice(sorted(tone_corpus.LEXICON), size=2 + i % 3)]
        rows.append((f"test{i % 2}-u{i}", f"test{i % 2}", words))
        soundfile.write(
            folder / "test" / f"{rows[-1][0]}.wav", tone_corpus.say(words, random), tone_corpus.RATE, subtype="PCM_16"
        )
    rows.sort()
    write_tables(folder / "test", rows)
    return folder


def write_tables(folder: Path, rows: Sequence[tuple[str, str, Sequence[str]]]) -> None:
    """Write the three tables of a split whose audio is in it."""
    (folder / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name, _, _ in rows))
    (folder / "text").write_text("".join(f"{name} {' '.join(words)}\n" for name, _, words in rows))
    (folder / "utt2spk").write_text("".join(f"{name} {speaker}\n" for name, speaker, _ in rows))


def make_data(folder: Path, **changes: Any) -> PreparedData:
    """Prepare such a corpus: ``folder/corpus`` and ``folder/data``."""
    prepare(make_corpus(folder / "corpus"), folder / "data", replace(SETTINGS, **changes))
    return open_prepared(folder / "data")


def make_run(
    data: PreparedData, run: Path, *, kinds: Sequence[str] = ("plain",), ivectors: bool = False, objective: str = "ce",
    steps: int = 150,
) -> Path:  # fmt: skip
    """Train a small network and write it as a run."""
    torch.manual_seed(0)
    inputs = data.inputs("train", kinds, ivectors=ivectors)
    outputs = data.num_senones if objective == "ce" else len(data.lexicon.phones)
    model = build_model(MODEL, inputs.dim, outputs)
    _train(model, data, kinds, ivectors, objective, steps)
    run.mkdir(parents=True)
    task = {"name": "acoustic", "data": str(data.folder), "model": MODEL, "objective": objective}
    (run / "settings.toml").write_text(tomli_w.dumps({"task": task}))
    RunFolder(run).save_model(model, {})
    write_bundle(data, run, kinds=kinds, ivectors=ivectors, objective=objective)
    return run


def _train(
    model: AcousticModel, data: PreparedData, kinds: Sequence[str], ivectors: bool, objective: str, steps: int
) -> None:
    """Train on frames, to be fast; for CTC on phones at their beginnings and the blank elsewhere, as CTC would."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inputs, names = data.inputs("train", kinds, ivectors=ivectors), data.alignments("train").ids
    frames = [np.pad(inputs[name], ((model.left, model.right), (0, 0)), mode="edge") for name in names]
    windows = torch.cat([torch.from_numpy(x).unfold(0, model.left + 1 + model.right, 1) for x in frames])
    windows = windows.transpose(1, 2)
    targets = torch.cat([_targets(data, name, objective) for name in names])
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(targets), (128,), generator=generator)
        loss = functional.cross_entropy(model(windows[chosen]).squeeze(1), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _targets(data: PreparedData, name: str, objective: str) -> torch.Tensor:
    senones = np.array(data.alignments("train")[name], np.int64)
    if objective == "ce":
        return torch.from_numpy(senones)
    labels = np.zeros(len(senones), np.int64)
    for phone, begin, end in data.phones("train")[name]:
        labels[begin : (begin + end + 1) // 2] = phone
    return torch.from_numpy(labels)


def copy_run(folder: Path) -> Path:
    """Copy the run without what was decoded by it, beside a link to its data; return the copy."""
    shutil.copytree(place() / "run", folder / "run", ignore=shutil.ignore_patterns("decode"))
    (folder / "data").symlink_to(place() / "data")
    return folder / "run"
