"""Data to decode: a split of prepared data or of a corpus folder, with the inputs of a run's network."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roundelay.corpora.data_directory import find_splits, read_split
from roundelay.errors import DataError, suggest
from roundelay.formats.kaldi_archives import read_scp
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.matching_features import make_matching_features
from roundelay.speech.decoding.network_scorer import describe
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.preparation.prepared_data import DESCRIPTION, PreparedData, open_prepared

_log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DecodingSplit:
    """Utterances to decode, with their transcripts."""

    name: str
    """Name of the results' folder, such as an4-test."""
    split: str
    """Name of the split; of the folder if that is a single split."""
    inputs: CombinedInputs
    transcripts: Mapping[str, Sequence[str]]
    digest: str | None
    """Digest of the prepared data; None for a corpus folder."""

    @property
    def utterances(self) -> list[str]:
        """List the utterances."""
        return list(self.transcripts)


@contextlib.contextmanager
def open_split(
    bundle: Bundle, data: Path, split: str, *, jobs: int = 1, resample: bool = False,
    progress: Progress = lambda *_: None,
) -> Iterator[DecodingSplit]:  # fmt: skip
    """Open a split of prepared data, or make features of a corpus folder's split in a temporary folder."""
    data = Path(data)
    if (data / DESCRIPTION).is_file():
        yield _warn_of_short(_from_prepared(bundle, open_prepared(data), split))
        return
    folder = _split_folder(data, split)
    utterances = read_split(folder)
    archives = read_scp(folder / "feats.scp") if bundle.given_features and (folder / "feats.scp").is_file() else None
    with tempfile.TemporaryDirectory(prefix="roundelay-") as temporary:
        inputs = make_matching_features(
            bundle, utterances, Path(temporary), archives=archives, jobs=jobs, resample=resample, progress=progress
        )
        transcripts = {utterance.id: utterance.words for utterance in utterances}
        corpus = data.resolve().name
        name, split = (corpus, corpus) if folder == data else (f"{corpus}-{split}", split)
        yield _warn_of_short(DecodingSplit(name, split, inputs, transcripts, None))


def _warn_of_short(material: DecodingSplit) -> DecodingSplit:
    """Warn of utterances without frames, in which nothing can be recognised."""
    for name in material.utterances:
        if not material.inputs.lengths[material.inputs.index(name)]:
            _log.warning(
                "utterance %s: too short for a frame, so its words count as deleted; leave it out of wav.scp", name
            )
    return material


def _split_folder(data: Path, split: str) -> Path:
    """Find a split; a folder that is a single split is used for any name."""
    found = find_splits(data)
    if list(found.values()) == [data]:
        return data
    if split not in found:
        raise DataError(f"{data}: unknown split {suggest(split, found)}")
    return found[split]


def _from_prepared(bundle: Bundle, prepared: PreparedData, split: str) -> DecodingSplit:
    check_features(bundle, prepared)
    inputs = prepared.inputs(split, bundle.kinds, ivectors=bundle.ivectors)
    name = f"{prepared.folder.resolve().name}-{split}"
    transcripts = {u.id: u.words for u in prepared.utterances(split)}
    return DecodingSplit(name, split, inputs, transcripts, prepared.digest)


def check_features(bundle: Bundle, prepared: PreparedData) -> None:
    """Refuse data that were prepared with other features than the run's, and say in what they differ."""
    if prepared.digest == bundle.digest:
        return
    settings = prepared.description["settings"]
    theirs = settings["features"] | {"normalise": settings["normalise"]}
    ours = bundle.description["features"] | {"normalise": bundle.normalise}
    differing = [f"{key} {theirs.get(key)} instead of {ours[key]}" for key in ours if theirs.get(key) != ours[key]]
    for file, needed, what in (
        ("hmm/model.safetensors", "adapted" in bundle.kinds, "adapted by another HMM-GMM"),
        ("ivectors/model.safetensors", bundle.ivectors, "speaker vectors of another model"),
    ):
        if needed and not differing and _digest(prepared, file) != bundle.sha256(file):
            differing.append(what)
    if differing:
        raise DataError(
            f"{prepared.folder}: not the features that {bundle.run} was trained on ({describe(bundle)}): "
            f"{', '.join(differing)}; give the corpus folder ({prepared.description['corpus']}) instead, and its "
            f"features are made as the run's own were"
        )


def _digest(prepared: PreparedData, file: str) -> str | None:
    from roundelay.files import file_digest

    path = prepared.folder / file
    return file_digest(path) if path.is_file() else None
