"""Prepared data: the folder that training and decoding read."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from roundelay.corpora.data_directory import Utterance
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import digest, read_json, write_text
from roundelay.speech.features import digest_checks
from roundelay.speech.features.array_store import INDEX, ArrayStore
from roundelay.speech.features.digest_checks import AGAIN
from roundelay.speech.features.extraction import Copy, list_copies
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language.lexicon import Lexicon

DESCRIPTION = "prepared.json"
KINDS = ("plain", "adapted")


class _Description(msgspec.Struct):
    """What ``prepared.json`` must have."""

    digest: str
    splits: list[str]
    train_splits: list[str]
    settings: dict[str, Any]
    stages: dict[str, str]
    senone_counts: list[float]
    files: dict[str, str] = {}
    """Digests of all files but those that an index of a store lists; data of older versions have none."""
    seal: str | None = None
    """Digest of all else here."""


def sealed(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with its seal."""
    rest = {name: value for name, value in description.items() if name != "seal"}
    return rest | {"seal": digest(rest)}


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
        try:
            known = msgspec.convert(self.description, _Description)
            self.feature_settings = FeatureSettings(**self.description["settings"]["features"])
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise DataError(f"{self.folder / DESCRIPTION}: damaged: {error}; {AGAIN}") from error
        if known.seal is not None and sealed(self.description) != self.description:
            raise DataError(f"{self.folder / DESCRIPTION}: damaged: its seal is not that of its contents; {AGAIN}")
        self.files: dict[str, str] = known.files
        """Digests of files, by their names in the folder."""
        self._seen: set[str] = set()
        self._checks = digest_checks.FileChecks()
        self.digest: str = self.description["digest"]
        """Digest of settings and input files."""
        self.splits: list[str] = self.description["splits"]
        self.train_splits: list[str] = self.description["train_splits"]
        self._stores: dict[tuple[str, ...], ArrayStore] = {}
        self._utterances: dict[str, list[Utterance]] = {}

    def checked(self, *parts: str) -> Path:
        """Return the path of a file, compared with its digest when it is first asked for; raise if it is damaged."""
        name = "/".join(parts)
        if name in self.files and name not in self._seen:
            digest_checks.check(self.folder / name, self.files[name], DESCRIPTION)
            self._seen.add(name)
        return self.folder.joinpath(*parts)

    def begin_checks(self, names: Iterable[str]) -> None:
        """Begin to compare files, which are needed later, with their digests; `look` raises if one is damaged."""
        for name in names:
            if name in self.files and name not in self._seen:
                self._checks.begin(self.folder / name, self.files[name], DESCRIPTION)

    def look(self) -> None:
        """Raise if a file of which `begin_checks` was told is known to be damaged."""
        self._checks.look()

    def finish_checks(self, *, everything: bool = False) -> None:
        """Wait for what was begun, and until all that was read of features and alignments has been compared.

        With ``everything`` all shards of what was opened are, read or not.  Raise if any is damaged.
        """
        self._checks.finish()
        for store in self._stores.values():
            if everything:
                store.verify()
            else:
                store.finish_checks()

    @functools.cached_property
    def lexicon(self) -> Lexicon:
        """Read the lexicon."""
        for name in ("lexicon.txt", "unknown.txt"):
            self.checked(name)
        return Lexicon.open(self.folder)

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """List the words that can be recognised; the lexicon also has words of held-out transcripts."""
        path = self.checked("vocabulary.txt")
        try:
            return path.read_text(encoding="utf-8").split()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: damaged: {error}; {AGAIN}") from error

    @functools.cached_property
    def tree(self) -> Tree:
        """Read the tree of tied states."""
        return Tree.load(self.checked("tree.safetensors"))

    @property
    def num_senones(self) -> int:
        """Return the number of tied states."""
        return self.tree.num_senones

    def _store(self, *parts: str) -> ArrayStore:
        """Open a store once and keep it open."""
        if parts not in self._stores:
            self._stores[parts] = ArrayStore(self.checked(*parts, INDEX).parent)
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
            self._utterances[split] = read_utterances(self.checked("utterances", f"{self._known(split)}.jsonl"))
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
        return read_graph(self.checked("graphs", f"{name}.fst"))


def open_prepared(folder: str | os.PathLike[str]) -> PreparedData:
    """Open prepared data."""
    return PreparedData(folder)


def write_utterances(path: Path, utterances: Iterable[Utterance]) -> None:
    """Write utterances as JSON lines."""
    rows = (asdict(utterance) | {"audio": str(utterance.audio)} for utterance in utterances)
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_utterances(path: Path) -> list[Utterance]:
    """Read what ``write_utterances`` wrote."""
    try:
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [Utterance(**(row | {"audio": Path(row["audio"]), "words": tuple(row["words"])})) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path}: damaged: {error}; {AGAIN}") from error
