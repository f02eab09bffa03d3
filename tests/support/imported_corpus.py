"""What an import makes of a corpus."""

from __future__ import annotations

from pathlib import Path

from roundelay import corpora
from roundelay.corpora.data_directory import Utterance, find_splits, read_split
from roundelay.corpora.importer import import_corpus
from roundelay.formats import audio_files


def imported(name: str, source: Path, out: Path) -> dict[str, list[Utterance]]:
    """Import a corpus, and make sure that all its audio can be read and no speaker is on both sides."""
    import_corpus(corpora.load(name), source, out)
    found = {split: read_split(folder) for split, folder in find_splits(out).items()}
    for utterances in found.values():
        for u in utterances:
            samples, _ = audio_files.read(u.audio, channel=u.channel, begin=u.begin, end=u.end)
            assert len(samples) > 100
    training = {u.speaker for u in found.get("train", ())}
    assert (
        not any(u.speaker in training for split, us in found.items() for u in us if split != "train") or name == "yesno"
    )
    return found


def words(utterances: list[Utterance]) -> dict[str, str]:
    return {utterance.id: " ".join(utterance.words) for utterance in utterances}
