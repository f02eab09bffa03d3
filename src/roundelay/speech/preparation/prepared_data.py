"""Prepared data: the folder that training and decoding read."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roundelay.corpora.data_directory import Utterance
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import read_json, write_text
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.features.extraction import Copy, list_copies
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language.lexicon import Lexicon

DESCRIPTION = "prepared.json"
KINDS = ("plain", "adapted")


class PreparedData:
    """Read access to a folder of prepared data.

    ::

        DATA/
          prepared.json  summary.json         settings, digests, sizes; summary of the contents
          picture.svg                         an utterance with waveform, features and alignment
          utterances/SPLIT.jsonl              speaker, words and audio of each utterance
          lexicon.txt  phones.txt  words.txt  unknown.txt
          vocabulary.txt                      the words that the graphs can recognise
          features/SPLIT/                     a store of (frames, features)
          hmm/                                the acoustic model that aligned
          tree.safetensors                    senones by phone and context
          alignments/SPLIT/{senones,phones,words}/   stores: senones by frame; rows (id, first frame, end)
          graphs/NAME.fst  G.arpa             from senones to words
          adapted/SPLIT/                      with --adapt: a store of features adapted to the speaker
          ivectors/SPLIT/                     with --ivectors: a store of one vector per utterance
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not (self.folder / DESCRIPTION).is_file():
            raise DataError(f"{self.folder}: no prepared data, or incomplete; run roundelay prepare")
        self.description: dict[str, Any] = read_json(self.folder / DESCRIPTION)
        self.digest: str = self.description["digest"]
        """Digest of settings and input files."""
        self.splits: list[str] = self.description["splits"]
        self.train_splits: list[str] = self.description["train_splits"]
        self.feature_settings = FeatureSettings(**self.description["settings"]["features"])
        self._stores: dict[tuple[str, ...], ArrayStore] = {}
        self._utterances: dict[str, list[Utterance]] = {}

    @functools.cached_property
    def lexicon(self) -> Lexicon:
        """Read the lexicon."""
        return Lexicon.open(self.folder)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """List the words that can be recognised; the lexicon also has words of held-out transcripts."""
        return (self.folder / "vocabulary.txt").read_text(encoding="utf-8").split()

    @functools.cached_property
    def tree(self) -> Tree:
        """Read the tree of tied states."""
        return Tree.load(self.folder / "tree.safetensors")

    @property
    def num_senones(self) -> int:
        """Return the number of tied states."""
        return self.tree.num_senones

    def _store(self, *parts: str) -> ArrayStore:
        """Open a store once and keep it open."""
        if parts not in self._stores:
            self._stores[parts] = ArrayStore(self.folder.joinpath(*parts))
        return self._stores[parts]

    def _known(self, split: str) -> str:
        if split not in self.splits:
            raise DataError(f"{self.folder}: unknown split {suggest(split, self.splits)}")
        return split

    def _made(self, stage: str, option: str) -> str:
        """Return the stage; raise if these data were prepared without it, even if old files exist."""
        if stage not in self.description["stages"]:
            raise DataError(f"{self.folder}: prepared without {stage}; prepare the data with {option}")
        return stage

    def features(self, split: str, kind: str = "plain") -> ArrayStore:
        """Open the features of a split, arrays (T, F): ``plain`` as extracted and normalised, or ``adapted``."""
        if kind not in KINDS:
            raise SettingsError(f"unknown kind of features {suggest(kind, KINDS)}")
        folder = "features" if kind == "plain" else self._made("adapted", "--adapt")
        return self._store(folder, self._known(split))

    def ivectors(self, split: str) -> ArrayStore:
        """Open the speaker vectors of a split: arrays (1, R) by utterance."""
        return self._store(self._made("ivectors", "--ivectors"), self._known(split))

    def inputs(self, split: str, kinds: Sequence[str] = ("plain",), *, ivectors: bool = False) -> CombinedInputs:
        """Return kinds of features side by side, optionally followed by the speaker's vector."""
        return CombinedInputs(
            [self.features(split, kind) for kind in kinds], self.ivectors(split) if ivectors else None
        )

    def alignments(self, split: str) -> ArrayStore:
        """Open the senones of a split: arrays (T,); utterances that could not be aligned are missing."""
        return self._store("alignments", self._known(split), "senones")

    def phones(self, split: str) -> ArrayStore:
        """Open the aligned phones of a split: rows (index in ``lexicon.phones``, first frame, frame after the last)."""
        return self._store("alignments", self._known(split), "phones")

    def words(self, split: str) -> ArrayStore:
        """Open the aligned words of a split: rows (word id, first frame, frame after the last)."""
        return self._store("alignments", self._known(split), "words")

    def utterances(self, split: str) -> list[Utterance]:
        """List the utterances of a split, without copies at other speeds."""
        if split not in self._utterances:
            self._utterances[split] = read_utterances(self.folder / "utterances" / f"{self._known(split)}.jsonl")
        return self._utterances[split]

    def copies(self, split: str) -> list[Copy]:
        """List the utterances of ``features``, for training splits with copies at other speeds."""
        speeds = self.description["settings"]["speeds"] if split in self.train_splits else []
        return list_copies(self.utterances(split), speeds)

    def transcripts(self, split: str) -> dict[str, tuple[str, ...]]:
        """Map each name in ``features`` to its words."""
        return {copy.name: copy.utterance.words for copy in self.copies(split)}

    def speakers(self, split: str) -> dict[str, str]:
        """Map each name in ``features`` to its speaker."""
        return {copy.name: copy.speaker for copy in self.copies(split)}

    def labels(self, split: str) -> dict[str, list[int]]:
        """Map each name in ``features`` to the phone indices for CTC; 0 is the blank."""
        transcripts = self.transcripts(split)
        return {name: [i - 1 for i in self.lexicon.phone_sequence(words)] for name, words in transcripts.items()}

    def priors(self, smoothing: float = 10.0) -> npt.NDArray[np.float64]:
        """Return the share of each senone in the training alignments, ``smoothing`` added to every count."""
        counts = np.asarray(self.description["senone_counts"], np.float64) + smoothing
        return np.asarray(counts / counts.sum())

    @property
    def graph_names(self) -> list[str]:
        """List the names of the decoding graphs."""
        return sorted(path.stem for path in (self.folder / "graphs").glob("*.fst"))

    def graph(self, name: str) -> Any:
        """Read a decoding graph, a kaldifst transducer from ``senone + 1`` to word ids."""
        from roundelay.speech.language.decoding_graph import read_graph

        if name not in self.graph_names:
            raise DataError(f"{self.folder}: unknown graph {suggest(name, self.graph_names)}")
        return read_graph(self.folder / "graphs" / f"{name}.fst")


def open_prepared(folder: str | os.PathLike[str]) -> PreparedData:
    """Open prepared data."""
    return PreparedData(folder)


def write_utterances(path: Path, utterances: Iterable[Utterance]) -> None:
    """Write utterances as JSON lines."""
    rows = (asdict(utterance) | {"audio": str(utterance.audio)} for utterance in utterances)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_utterances(path: Path) -> list[Utterance]:
    """Read what ``write_utterances`` wrote."""
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [Utterance(**(row | {"audio": Path(row["audio"]), "words": tuple(row["words"])})) for row in rows]
