"""The acoustic bundle: files of the prepared data that a run needs for decoding, copied into its folder.

::

    RUN/acoustic/
      bundle.json                         settings of the features, priors, what was trained on, digests of the files
      lexicon.txt  phones.txt  words.txt  unknown.txt  vocabulary.txt
      tree.safetensors                    senones by phone and context
      graphs/NAME.fst  G.arpa             from senones (or CTC's phones) to words
      hmm/                                if the network uses adapted features: the model that adapts them
      ivectors/                           if the network uses speaker vectors: the model that makes them
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import file_digest, inside_nested, make_folder, make_inside, read_json, replacing, write_json
from roundelay.formats import audio_files
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.features.normalisation import Scope
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.language_stage import LanguageSettings, graph_name
from roundelay.speech.preparation.prepared_data import KINDS, PreparedData

FOLDER = "acoustic"
DESCRIPTION = "bundle.json"
OBJECTIVES = ("ce", "ctc")
_VERSION = 1
_WORDS = ("lexicon.txt", "phones.txt", "words.txt", "unknown.txt", "vocabulary.txt", "G.arpa", "tree.safetensors")
_HMM = ("hmm/model.safetensors", "hmm/model.json")
_IVECTORS = ("ivectors/model.safetensors", "ivectors/normaliser.json")


def write_bundle(
    prepared: PreparedData,
    folder: Path,
    *,
    kinds: Sequence[str] = ("plain",),
    ivectors: bool = False,
    objective: str = "ce",
    train: Sequence[str] = (),
) -> None:
    """Copy all files of ``prepared`` that decoding needs into the run ``folder``; write bundle.json last.

    ``kinds`` and ``ivectors`` are the arguments of ``PreparedData.inputs`` in the run.  Outputs are senones if
    ``objective`` is ``ce``, a blank and phones if it is ``ctc``.  ``train`` lists the splits that the run was trained
    on; default: the training splits of the data.  A bundle of the same data is not changed.
    """
    if objective not in OBJECTIVES:
        raise SettingsError(f"unknown objective {suggest(objective, OBJECTIVES)}")
    inputs = prepared.inputs(prepared.train_splits[0], kinds, ivectors=ivectors)  # raises if the data lack them
    target = make_inside(folder, FOLDER)
    description = _describe(prepared, target, kinds, ivectors, objective) | {"inputs": inputs.dim}
    splits = list(train) or prepared.train_splits
    description |= {"train_splits": splits, "trained_on": {name: len(prepared.utterances(name)) for name in splits}}
    if (target / DESCRIPTION).is_file() and read_json(target / DESCRIPTION) == description:
        return
    (target / DESCRIPTION).unlink(missing_ok=True)
    for name in description["files"]:
        place = inside_nested(target, name, where=str(prepared.folder))
        make_folder(place.parent)
        with replacing(place) as partial:
            shutil.copyfile(prepared.folder / name, partial)
    write_json(target / DESCRIPTION, description)


def _describe(
    prepared: PreparedData, target: Path, kinds: Sequence[str], ivectors: bool, objective: str
) -> dict[str, Any]:
    settings = prepared.description["settings"]
    source = prepared.folder
    files = {
        name: {"bytes": (source / name).stat().st_size, "sha256": file_digest(prepared.checked(name))}
        for name in bundle_files(prepared, kinds, ivectors)
    }
    return {
        "version": _VERSION,
        "digest": prepared.digest,
        "data": os.path.relpath(source.absolute(), target.absolute()),
        "features": settings["features"],
        "normalise": settings["normalise"],
        "given_features": settings["given_features"],
        "source_rate": None if settings["given_features"] else _source_rate(prepared),
        "ivector_settings": settings["ivectors"] if ivectors else None,
        "kinds": list(kinds),
        "ivectors": ivectors,
        "objective": objective,
        "outputs": prepared.num_senones if objective == "ce" else len(prepared.lexicon.phones),
        "priors": prepared.priors().tolist(),
        "first_pass": graph_name(LanguageSettings(**settings["language"])),
        "splits": prepared.splits,
        "files": files,
    }


def bundle_files(prepared: PreparedData, kinds: Sequence[str], ivectors: bool) -> Iterator[str]:
    """Yield the files that a bundle copies, relative to both folders."""
    yield from _WORDS
    yield from (f"graphs/{name}.fst" for name in prepared.graph_names)
    yield from _HMM if "adapted" in kinds else ()
    yield from _IVECTORS if ivectors else ()


def _source_rate(prepared: PreparedData) -> int | None:
    """Return the sample rate of the training audio; features may have been made at a higher rate."""
    first = prepared.utterances(prepared.train_splits[0])[0].audio
    return audio_files.info(first).rate if first.is_file() else None


class Bundle:
    """Read access to the bundle of a run; ``Bundle.open(RUN)``."""

    def __init__(self, run: Path) -> None:
        self.run = Path(run)
        self.folder = self.run / FOLDER
        if not (self.folder / DESCRIPTION).is_file():
            raise DataError(
                f"{self.run}: no trained acoustic model ({FOLDER}/{DESCRIPTION} is missing); give the folder of "
                f"a run of an acoustic task"
            )
        self.description: dict[str, Any] = read_json(self.folder / DESCRIPTION)
        version = self.description.get("version") if isinstance(self.description, dict) else None
        if version != _VERSION:
            raise DataError(f"{self.folder / DESCRIPTION}: version {version!r}; this reads {_VERSION}")
        try:
            self._check_sizes()
            self._read()
        except (TypeError, KeyError, AttributeError, ValueError, AssertionError) as error:
            raise DataError(f"{self.folder / DESCRIPTION}: damaged: {error}; copy the run again") from error

    def _read(self) -> None:
        """Read what the description says."""
        self.digest: str = self.description["digest"]
        """Digest of the prepared data that the run was trained on."""
        self.feature_settings = FeatureSettings(**self.description["features"])
        self.normalise: Scope = self.description["normalise"]
        self.given_features: bool = self.description["given_features"]
        """Whether features came from archives instead of audio."""
        self.source_rate: int | None = self.description.get("source_rate")
        """Sample rate of the training audio, None if unknown."""
        self.kinds: list[str] = self.description["kinds"]
        if not all(kind in KINDS for kind in self.kinds):
            raise TypeError(f"unknown kinds of features {self.kinds}")
        self.ivectors: bool = self.description["ivectors"]
        self.objective: str = self.description["objective"]
        self.inputs: int = self.description["inputs"]
        self.outputs: int = self.description["outputs"]
        self.first_pass: str = self.description["first_pass"]
        """Name of the graph for the first pass of adaptation."""

    @classmethod
    def open(cls, run: str | os.PathLike[str]) -> Bundle:
        """Open the bundle of a run."""
        return cls(Path(run))

    def _check_sizes(self) -> None:
        for name, said in self.description["files"].items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != said["bytes"]:
                state = "is incomplete" if path.is_file() else "is missing"
                raise DataError(f"{path}: {state}; copy the run again, with all files below {FOLDER}")

    def verify(self) -> None:
        """Read all files and compare their digests."""
        for name, said in self.description["files"].items():
            if file_digest(self.folder / name) != said["sha256"]:
                raise DataError(f"{self.folder / name}: changed since the run was trained; copy the run again")

    @property
    def data(self) -> Path:
        """Return the path of the prepared data; they may have been moved since."""
        return Path(os.path.normpath(self.folder.absolute() / self.description["data"]))

    @property
    def ctc(self) -> bool:
        """Return whether the outputs are those of CTC."""
        return self.objective == "ctc"

    def sha256(self, name: str) -> str | None:
        """Return the digest of a file, None if it is not in the bundle."""
        said: dict[str, Any] | None = self.description["files"].get(name)
        return said["sha256"] if said else None

    @property
    def priors(self) -> npt.NDArray[np.float64]:
        """Return the share of each senone in the training alignments, smoothed."""
        return np.asarray(self.description["priors"], np.float64)

    @functools.cached_property
    def lexicon(self) -> Lexicon:
        """Read the lexicon; raise if its phones and words do not match the ids in graphs and tree."""
        lexicon = Lexicon.open(self.folder)
        for name, found in (("phones.txt", lexicon.phones), ("words.txt", lexicon.words)):
            listed = _symbols(self.folder / name)
            lost = sorted(set(listed) - set(found)) or sorted(set(found) - set(listed))
            if lost:
                where = "lexicon.txt" if lost[0] not in found else name
                raise DataError(f"{self.folder / where}: {lost[0]!r} is missing; copy the run's own file again")
        return lexicon

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """List the words that can be recognised."""
        return (self.folder / "vocabulary.txt").read_text(encoding="utf-8").split()

    @property
    def phones(self) -> list[str]:
        """List all phones, silence first."""
        return self.lexicon.phones

    @functools.cached_property
    def tree(self) -> Tree:
        """Read the tree of tied states."""
        return Tree.load(self.folder / "tree.safetensors")

    @property
    def languages(self) -> list[str]:
        """List the languages with a graph for this objective: flat, bigram ..."""
        names = (Path(name).stem for name in self.description["files"] if name.endswith(".fst"))
        return sorted(name.removesuffix("-ctc") for name in names if name.endswith("-ctc") == self.ctc)

    def graph_path(self, language: str) -> Path:
        """Return the path of the graph of a language."""
        if self.ctc and not self.languages:
            raise DataError(f"{self.folder}: no CTC graph; prepare the data with --ctc and train on them")
        if language not in self.languages:
            raise DataError(f"{self.folder}: unknown language {suggest(language, self.languages)}")
        return self.folder / "graphs" / f"{language}{'-ctc' if self.ctc else ''}.fst"

    def graph(self, language: str) -> Any:
        """Read a decoding graph, a kaldifst transducer from ``output + 1`` to word ids."""
        from roundelay.speech.language.decoding_graph import read_graph

        return read_graph(self.graph_path(language))


def _symbols(path: Path) -> list[str]:
    """List the names in a table of symbols, without epsilon and ``#0``."""
    names = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [name for name in names if name not in ("<eps>", "#0")]
