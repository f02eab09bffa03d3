"""Summarise and check prepared data."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roundelay.errors import DataError
from roundelay.files import read_json, write_text
from roundelay.speech.features import digest_checks
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.features.extraction import SOUNDS, Copy, read_samples
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.preparation.language_stage import read_vocabulary
from roundelay.speech.preparation.prepared_data import DESCRIPTION, PreparedData, open_prepared
from roundelay.speech.preparation.utterance_picture import Picture, Span, draw


def summarise(folder: Path, items: Mapping[str, Sequence[Copy]], settings: FeatureSettings) -> dict[str, Any]:
    """Summarise the files that preparation wrote."""
    lexicon = Lexicon.open(folder)
    return {
        "splits": {name: _split(folder, name, copies, settings) for name, copies in items.items()},
        "lexicon": {"words": len(lexicon.words), "phones": len(lexicon.phones), "unknown": list(lexicon.unknown)},
        "senones": Tree.load(folder / "tree.safetensors").num_senones,
        "phone_durations": phone_durations(
            (ArrayStore(folder / "alignments" / name / "phones") for name in items),
            lexicon,
            settings.frame_shift_seconds,
        ),
    }


def compare_vocabulary(folder: Path, texts: Mapping[str, Sequence[Sequence[str]]], train_splits: Sequence[str]) -> Any:
    """Compare the vocabulary with the words of training and of other splits."""
    words = set(read_vocabulary(folder))
    said = {name: [word for sentence in sentences for word in sentence] for name, sentences in texts.items()}
    trained = {word for name in train_splits for word in said[name]}
    outside = {name: [word for word in some if word not in words] for name, some in said.items()}
    return {
        "words": len(words),
        "not_in_training": len(words - trained),
        # True if the lexicon was made from all transcripts, held-out ones included.
        "just_the_transcripts": bool(words - trained) and words <= {word for some in said.values() for word in some},
        "unrecognisable": {
            name: {"words": sorted(set(outside[name])), "tokens": len(outside[name]), "of": len(said[name])}
            for name in texts
            if name not in train_splits
        },
    }


def _split(folder: Path, name: str, copies: Sequence[Copy], settings: FeatureSettings) -> dict[str, Any]:
    features = ArrayStore(folder / "features" / name)
    sounds = read_json(folder / "features" / name / SOUNDS)
    failed = read_json(folder / "alignments" / name / "failures.json")
    originals = [copy.utterance for copy in copies if copy.speed == 1.0]
    return {
        "utterances": len(originals),
        "copies": len(copies) - len(originals),
        "hours": round(features.num_rows * settings.frame_shift_seconds / 3600, 4),
        "frames": features.num_rows,
        "speakers": len({utterance.speaker for utterance in originals}),
        "words": sum(len(utterance.words) for utterance in originals),
        "vocabulary": len({word for utterance in originals for word in utterance.words}),
        "silent": sorted(name for name, reason in sounds["complaints"].items() if reason == "silent"),
        "clipped": sorted(name for name, reason in sounds["complaints"].items() if reason == "clipped"),
        "aligned": len(ArrayStore(folder / "alignments" / name / "senones")),
        "failed": dict(sorted(failed.items())),
    }


def phone_durations(stores: Iterable[ArrayStore], lexicon: Lexicon, shift: float) -> dict[str, dict[str, float]]:
    """Measure how often each phone is aligned, and the mean and standard deviation of its length in milliseconds."""
    sums = np.zeros((len(lexicon.phones), 3))
    for store in stores:
        for rows in store.values():
            frames = (rows[:, 2] - rows[:, 1]).astype(np.float64)
            for power in range(3):
                sums[:, power] += np.bincount(rows[:, 0], frames**power, minlength=len(sums))
    result = {}
    for phone, (count, total, squares) in zip(lexicon.phones, sums, strict=True):
        mean = total / max(count, 1)
        deviation = max(squares / max(count, 1) - mean**2, 0.0) ** 0.5
        scale = 1000 * shift
        result[phone] = {"count": int(count), "mean_ms": round(mean * scale, 1), "std_ms": round(deviation * scale, 1)}
    return result


def check_prepared(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Check prepared data: return its summary with one line per problem.

    Every byte is read and compared with its checksum.
    """
    data = open_prepared(folder)
    problems = [
        wrong
        for name, sha256 in data.files.items()
        if (wrong := digest_checks.difference(data.folder / name, sha256, DESCRIPTION))
    ]
    for split in data.splits:
        try:
            problems += _check_split(data, split)
        except DataError as error:
            problems.append(str(error))
    summary = read_json(data.folder / "summary.json")
    for split, part in summary["splits"].items():
        problems += [f"{split}: {name} was not aligned: {reason}" for name, reason in part["failed"].items()]
        problems += [f"{split}: {name} is {kind}" for kind in ("silent", "clipped") for name in part[kind]]
    return {"folder": str(data.folder), **summary, "problems": list(dict.fromkeys(problems))}


def _check_split(data: PreparedData, split: str) -> list[str]:
    features, senones = data.features(split), data.alignments(split)
    made = data.description["stages"]
    more = [data.features(split, "adapted")] if "adapted" in made else []
    more += [data.ivectors(split)] if "ivectors" in made else []
    for store in (features, senones, data.phones(split), data.words(split), *more):
        store.verify()
    problems = [
        f"{split}: {name} has values that are not finite" for name in features if not np.isfinite(features[name]).all()
    ]
    for name in senones:
        if name not in features or len(senones[name]) != len(features[name]):
            problems.append(f"{split}: {name} has an alignment that does not fit its features")
        elif len(senones[name]) and not 0 <= senones[name].min() <= senones[name].max() < data.num_senones:
            problems.append(f"{split}: {name} has senones beyond {data.num_senones}")
    return problems


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a preparation's summary as a few lines of text."""
    head = f"{'split':<10} {'utterances':>10} {'hours':>8} {'speakers':>8} {'words':>8} {'aligned':>8} {'failed':>6}"
    result = [head]
    for name, part in summary["splits"].items():
        result.append(
            f"{name:<10} {part['utterances'] + part['copies']:>10} {part['hours']:>8.3f} {part['speakers']:>8} "
            f"{part['words']:>8} {part['aligned']:>8} {len(part['failed']):>6}"
        )
        result += [f"  {name}: not aligned: {utt}: {reason}" for utt, reason in list(part["failed"].items())[:5]]
        for kind in ("silent", "clipped"):
            if part[kind]:
                result.append(f"  {name}: {len(part[kind])} {kind}: {_some(part[kind])}")
    lexicon, language = summary["lexicon"], summary["language"]
    result.append(f"lexicon    {lexicon['words']} words, {lexicon['phones']} phones, {summary['senones']} senones")
    if lexicon["unknown"]:
        result.append(f"  {len(lexicon['unknown'])} pronunciations were guessed: {_some(lexicon['unknown'])}")
    result += _vocabulary_lines(summary["vocabulary"])
    for name, part in summary.get("adapted", {}).items():
        result.append(f"adapted    {name}: {part['with_matrix']} of {part['speakers']} speakers have a matrix")
    where = "held-out text" if language["held_out"] else "training text"
    for name, size in language["graphs"].items():
        measured = language["perplexity"].get(name)
        suffix = f", perplexity {measured['perplexity']:.1f} on {where}" if measured else ""
        result.append(f"graph      {name}: {size['states']} states, {size['arcs']} arcs{suffix}")
    return result


def _vocabulary_lines(found: Mapping[str, Any]) -> list[str]:
    result = [f"vocabulary {found['words']} words, {found['not_in_training']} of them never said in training"]
    if found["just_the_transcripts"]:
        result.append("  it has exactly the words of all transcripts; --vocabulary train leaves held-out ones out")
    for name, part in found["unrecognisable"].items():
        shown = f": {_some(part['words'])}" if part["words"] else ""
        counted = f"{len(part['words'])} words ({part['tokens']} of {part['of']} said)"
        result.append(f"  {name}: {counted} cannot be recognised{shown}")
    return result


def _some(names: Sequence[str]) -> str:
    return " ".join(names[:6]) + (" ..." if len(names) > 6 else "")


def draw_utterance(data: PreparedData, split: str, utterance: str) -> str:
    """Draw an utterance of prepared data with its waveform, features and alignment, as SVG."""
    known = {copy.name: copy for copy in data.copies(split) if copy.speed == 1.0}
    if utterance not in known:
        raise DataError(f"{data.folder}: {split} has no utterance {utterance!r}")
    settings, lexicon = data.feature_settings, data.lexicon
    shift = settings.frame_shift_seconds
    # A frame is drawn around its middle: half a frame's length after its first sample if edges are snipped.
    offset = (settings.frame_length_seconds - shift) / 2 if settings.snip_edges else 0.0

    def spans(store: ArrayStore, names: Sequence[str], first: int) -> list[Span]:
        rows = store[utterance].tolist() if utterance in store else []
        return [(names[i - first], begin * shift + offset, end * shift + offset) for i, begin, end in rows]

    source = known[utterance].utterance
    return draw(
        Picture(
            f"{utterance}: {' '.join(source.words)}", read_samples(source, settings.rate), settings.rate,
            data.features(split)[utterance], shift, spans(data.phones(split), lexicon.phones, 0),
            spans(data.words(split), lexicon.words, 1), offset,
        )
    )  # fmt: skip


def write_picture(data: PreparedData, path: Path) -> None:
    """Write the picture of an aligned training utterance, of about three seconds if there is one."""
    wanted = 3.0 / data.feature_settings.frame_shift_seconds
    for split in data.train_splits:
        aligned = data.alignments(split)
        plain = [copy.name for copy in data.copies(split) if copy.speed == 1.0 and copy.name in aligned]
        if plain:
            best = min(plain, key=lambda name: abs(len(aligned[name]) - wanted))
            write_text(path, draw_utterance(data, split, best))
            return
