"""Corpora, one file per corpus; all are imported as Kaldi-style data directories."""

from __future__ import annotations

import importlib

from roundelay.config import is_file_name
from roundelay.corpora.importer import Corpus
from roundelay.errors import SettingsError, suggest
from roundelay.plugins import installed, load_object

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


GROUP = "roundelay.corpora"


def names() -> list[str]:
    """Return the names of all corpora: the package's, and those of installed packages."""
    return [*MODULES, *installed(GROUP)]


def load(name: str) -> Corpus:
    """Return a corpus by its name: one of the package, of an installed package, or ``file.py:NAME``."""
    if name in MODULES:
        corpus = importlib.import_module(f"roundelay.corpora.{MODULES[name]}").CORPUS
    elif is_file_name(name) or name in installed(GROUP):
        corpus = load_object(name, GROUP)
    else:
        raise SettingsError(f"unknown corpus {suggest(name, names())}")
    if not isinstance(corpus, Corpus):
        raise SettingsError(f"{name}: not a Corpus")
    return corpus
