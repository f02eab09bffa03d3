"""Write alignments for other programs: CTM and TextGrid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from roundelay.errors import SettingsError, suggest
from roundelay.files import inside, make_inside
from roundelay.formats.alignment_files import Interval, write_ctm, write_textgrid
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.preparation.prepared_data import PreparedData


def export_alignments(data: PreparedData, kind: str) -> list[Path]:
    """Write the alignments of all splits below ``export/`` and return the files (CTM) or folders (TextGrid)."""
    if kind not in ("ctm", "textgrid"):
        raise SettingsError(f"unknown format of alignments {suggest(kind, ['ctm', 'textgrid'])}")
    folder = make_inside(data.folder, "export")
    for split in data.splits:
        inside(folder, split, what="split")
        for store in (data.phones(split), data.words(split)):
            store.verify()
    return [path for split in data.splits for path in (_ctm if kind == "ctm" else _textgrids)(data, split, folder)]


def phone_intervals(data: PreparedData, split: str, utterance: str) -> list[Interval]:
    """Return the aligned phones of an utterance in seconds."""
    return list(_intervals(data, data.phones(split), utterance, data.lexicon.phones))


def word_intervals(data: PreparedData, split: str, utterance: str) -> list[Interval]:
    """Return the aligned words of an utterance in seconds."""
    return list(_intervals(data, data.words(split), utterance, ["", *data.lexicon.words]))


def _intervals(data: PreparedData, store: ArrayStore, utterance: str, names: Sequence[str]) -> Iterator[Interval]:
    """Yield times from the begin of the audio; a frame covers one shift around its middle."""
    settings = data.feature_settings
    shift = settings.frame_shift_seconds
    offset = (settings.frame_length_seconds - shift) / 2 if settings.snip_edges else 0.0
    for number, begin, end in store[utterance].tolist():
        # The first frame also covers the time before it.
        yield Interval(begin * shift + offset if begin else 0.0, end * shift + offset, names[number])


def _ctm(data: PreparedData, split: str, folder: Path) -> list[Path]:
    paths = []
    for kind, intervals in (("phones", phone_intervals), ("words", word_intervals)):
        path = inside(folder, f"{split}.{kind}.ctm", what="split")
        write_ctm(path, {name: intervals(data, split, name) for name in data.alignments(split)})
        paths.append(path)
    return paths


def _textgrids(data: PreparedData, split: str, folder: Path) -> list[Path]:
    target = make_inside(folder, split, what="split")
    for name in data.alignments(split):
        tiers = {"words": word_intervals(data, split, name), "phones": phone_intervals(data, split, name)}
        path = inside(target, f"{name}.TextGrid", what="utterance")
        write_textgrid(path, tiers, max(i.end for tier in tiers.values() for i in tier))
    return [target]
