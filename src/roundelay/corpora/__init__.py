"""Corpora, one file per corpus; all are imported as Kaldi-style data directories."""

from __future__ import annotations

import importlib

from roundelay.corpora.importer import Corpus
from roundelay.errors import SettingsError, suggest

MODULES = {
    "synthetic": "synthetic.generator",
    "an4": "an4",
    "fsdd": "fsdd",
    "librispeech": "librispeech",
    "switchboard": "switchboard",
    "fisher": "fisher",
    "yesno": "yesno",
    "kaldi": "kaldi_dir",
    "lhotse": "lhotse",
    "folder": "audio_folder",
}
"""Corpus name to module; the module's ``CORPUS`` is the corpus."""


def load(name: str) -> Corpus:
    """Return a corpus by its name."""
    if name not in MODULES:
        raise SettingsError(f"unknown corpus {suggest(name, MODULES)}")
    corpus: Corpus = importlib.import_module(f"roundelay.corpora.{MODULES[name]}").CORPUS
    return corpus
