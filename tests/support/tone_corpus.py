"""A tiny corpus of tones: each phone is a chord, so that a few seconds of it can be prepared in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.gmm.gmm_training import GmmSettings
from roundelay.speech.preparation.pipeline import PrepareSettings
from roundelay.speech.preparation.prepared_data import DESCRIPTION

RATE = 16000
CHORDS = {"AA": (300, 900), "IY": (500, 2500), "S": (5000, 6500), "M": (150, 250)}
LEXICON = {"SEE": ["S", "IY"], "MA": ["M", "AA"], "AS": ["AA", "S"], "ME": ["M", "IY"]}
PHONE_SECONDS = 0.12
SETTINGS = PrepareSettings(
    features=FeatureSettings(num_bins=23),
    hmm=GmmSettings(num_senones=20, num_gaussians=30, mono_gaussians=24, mono_iterations=6, iterations=4),
)


def say(words: list[str], random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Play the chords of words between two silences."""
    parts = [np.zeros(int(0.15 * RATE))]
    for phone in (phone for word in words for phone in LEXICON[word]):
        time = np.arange(int(PHONE_SECONDS * random.uniform(0.8, 1.3) * RATE)) / RATE
        parts.append(sum(0.2 * np.sin(2 * np.pi * pitch * time) for pitch in CHORDS[phone]))  # type: ignore[arg-type]
    parts.append(np.zeros(int(0.15 * RATE)))
    clean = np.concatenate(parts)
    return np.asarray(clean + 0.003 * random.standard_normal(len(clean)), np.float32)


def make(folder: Path, train: int = 12, dev: int = 4) -> Path:
    """Write a corpus with splits train and dev and a lexicon."""
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("dev", dev)):
        (folder / split).mkdir(parents=True)
        rows = []
        for i in range(count):
            words = [str(word) for word in random.choice(sorted(LEXICON), size=3)]
            rows.append((f"{split}{i % 2}-u{i:02d}", f"{split}{i % 2}", words))
            soundfile.write(folder / split / f"{rows[-1][0]}.wav", say(words, random), RATE, subtype="PCM_16")
        rows.sort()
        (folder / split / "wav.scp").write_text("".join(f"{name} {name}.wav\n" for name, _, _ in rows))
        (folder / split / "text").write_text("".join(f"{name} {' '.join(words)}\n" for name, _, words in rows))
        (folder / split / "utt2spk").write_text("".join(f"{name} {speaker}\n" for name, speaker, _ in rows))
    (folder / "lexicon.txt").write_text("".join(f"{word} {' '.join(phones)}\n" for word, phones in LEXICON.items()))
    return folder


def forget_digests(data: Path) -> None:
    """Remove the digests of files from prepared data, as a stranger can who changes them."""
    description = json.loads((data / DESCRIPTION).read_text())
    kept = {key: value for key, value in description.items() if key not in ("files", "seal")}
    (data / DESCRIPTION).write_text(json.dumps(kept))
