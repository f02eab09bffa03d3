"""Decode a split with a trained run: hypotheses with times, and the word error rate."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from roundelay import config
from roundelay.config import Positive, Settings, limits
from roundelay.errors import DataError
from roundelay.files import append_text, digest, inside, make_folder, make_inside, read_json, write_json, write_text
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import Pruning, Weights
from roundelay.speech.decoding.decoding_data import DecodingSplit, open_split
from roundelay.speech.decoding.grammar import Grammar, build_grammar, find_grammar
from roundelay.speech.decoding.network_scorer import open_run
from roundelay.speech.decoding.recogniser import RecognisedUtterance, RecognitionPlan, recognise
from roundelay.speech.decoding.weight_tuning import TunedWeights, default_weights, read_tuned, tune
from roundelay.speech.decoding.word_error_rate import Wer
from roundelay.speech.preparation.prepared_data import DESCRIPTION
from roundelay.speech.worker_pool import WorkerPool

_log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
FOLDER = "decode"
LOG = "log.jsonl"
"""File in RUN/decode with one line per decoding, to count how often a split was decoded."""
DEV = "dev"


@dataclass(frozen=True)
class DecodeSettings(Settings):
    """How to decode; weights that are None are tuned on dev."""

    pruning: Pruning = field(default_factory=Pruning)
    scale: Positive | None = None
    penalty: float | None = None
    prior: float | None = None
    nbest: Annotated[int, limits(ge=0, largest=10_000)] = 0
    """Number of alternatives per utterance in nbest.jsonl."""
    lexicon: Path | None = None
    """Lexicon to use instead of the run's."""
    arpa: Path | None = None
    """Language model to use instead of the run's."""
    dev: Path | None = None
    """Data whose dev split is used for tuning, instead of the run's own."""
    weights_of: Path | None = None
    """Another run whose weights, tuned for the same language, are used."""
    device: str = "auto"
    """What the network computes on: an accelerator if there is one (``auto``), ``cpu``, or its name."""
    resample: bool = False
    """Whether to accept audio at a lower rate than the run was trained on."""
    jobs: Annotated[int, limits(ge=1, largest=1024)] = 1


@dataclass(frozen=True)
class DecodingResult:
    """Result of decoding a split."""

    folder: Path
    wer: Wer
    report: dict[str, Any]
    """Contents of wer.json."""
    utterances: list[RecognisedUtterance]


def decode_run(
    run: Path, data: Path | None = None, split: str = "test", *, language: str | None = None,
    settings: DecodeSettings | None = None, progress: Progress = lambda *_: None,
) -> DecodingResult:  # fmt: skip
    """Decode a split of ``data`` (prepared data or a corpus folder; by default what the run was trained on).

    Results are written below ``RUN/decode``, in a folder named after data, split and language.
    """
    run, settings = Path(run), settings or DecodeSettings()
    bundle = open_run(run)
    with grammar_for(bundle, language, settings) as grammar:
        if settings.weights_of is not None:
            _weights_of(settings.weights_of, grammar)  # raises at once if there are none
        data = data if data is not None else _own_data(bundle)
        with open_split(
            bundle, data, split, jobs=settings.jobs, resample=settings.resample, progress=progress
        ) as material:
            if split in trained_on(bundle) and material.digest == bundle.digest:
                _log.warning("%s: trained on %s, so its error rate is too optimistic", run, split)
            _name_unknown(material, grammar)
            tuned = choose_weights(bundle, grammar, settings, data, progress)
            plan = RecognitionPlan(
                run, grammar, (tuned.weights,), settings.pruning, times=True, nbest=settings.nbest,
                priors=tuned.priors, device=settings.device,
            )  # fmt: skip
            with WorkerPool(settings.jobs) as workers:
                found = list(
                    recognise(
                        plan, material.inputs, material.utterances, workers,
                        lambda done, total: progress("decoding", done, total),
                    )
                )  # fmt: skip
            return _finish(run, data, material, plan, tuned, found)


def _name_unknown(material: DecodingSplit, grammar: Grammar) -> None:
    """Warn of spoken words that cannot be recognised: they count as errors."""
    known = set(grammar.words())
    unknown = [word for words in material.transcripts.values() for word in words if word not in known]
    if unknown:
        some = " ".join(sorted(set(unknown))[:8])
        _log.warning(
            "%s: %d words are not in the lexicon, so they count as errors: %s", material.name, len(unknown), some
        )


def _own_data(bundle: Bundle) -> Path:
    if not (bundle.data / DESCRIPTION).is_file():
        raise DataError(
            f"{bundle.run}: its training data are not at {bundle.data}; give --data: prepared data or a folder "
            f"with wav.scp, text and utt2spk"
        )
    return bundle.data


@contextmanager
def grammar_for(bundle: Bundle, language: str | None, settings: DecodeSettings) -> Iterator[Grammar]:
    """Yield the grammar to decode with; a new one is built in a temporary folder."""
    if settings.lexicon is None and settings.arpa is None:
        yield find_grammar(bundle, language)
        return
    with tempfile.TemporaryDirectory(prefix="roundelay-") as folder:
        yield build_grammar(
            bundle, Path(folder), language=language or "flat", lexicon=settings.lexicon, arpa=settings.arpa
        )


def choose_weights(
    bundle: Bundle, grammar: Grammar, settings: DecodeSettings, data: Path | None = None,
    progress: Progress = lambda *_: None,
) -> TunedWeights:  # fmt: skip
    """Use the given weights; tune the others on dev, or read them if they were tuned before."""
    given = {name: getattr(settings, name) for name in ("scale", "penalty", "prior")}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) == 3:
        return TunedWeights(Weights(**given), None)
    if settings.weights_of is not None:
        tuned = _weights_of(settings.weights_of, grammar)
    else:
        before = None if settings.dev else read_tuned(bundle.run, grammar)
        tuned = before or _tune(bundle, grammar, settings, data, progress)
    return replace(tuned, weights=replace(tuned.weights, **given), on=None if given else tuned.on)


def _weights_of(run: Path, grammar: Grammar) -> TunedWeights:
    other = Bundle.open(run)
    found = read_tuned(run, find_grammar(other, grammar.name)) if grammar.name in other.languages else None
    if found is None:
        raise DataError(f"{run}: no weights tuned for {grammar.name}; decode with it first")
    return found


def trained_on(bundle: Bundle) -> list[str]:
    """List the splits that the run was trained on: those in its settings, otherwise those of its data."""
    settings = RunFolder(bundle.run).settings
    told = config.read(settings).get("task", {}).get("train") if settings.is_file() else None
    found: list[str] = told or bundle.description["train_splits"]
    return found


def _tune(
    bundle: Bundle, grammar: Grammar, settings: DecodeSettings, data: Path | None, progress: Progress
) -> TunedWeights:
    """Tune on the first dev split found: of ``settings.dev``, of the run's data, of the data to decode."""
    if settings.dev is not None:
        with open_split(bundle, settings.dev, DEV, jobs=settings.jobs, resample=settings.resample) as material:
            return tune(bundle.run, bundle.objective, grammar, material, settings.jobs, progress, settings.device)
    for candidate in (bundle.data, data):
        if candidate is None or not _has_dev(candidate):
            continue
        if DEV in trained_on(bundle) and _same(bundle, candidate):
            _log.warning("%s: trained on %s, so weights are not tuned on it; try --weights-of", bundle.run, DEV)
            continue
        try:
            with open_split(bundle, candidate, DEV, jobs=settings.jobs, resample=settings.resample) as material:
                return tune(bundle.run, bundle.objective, grammar, material, settings.jobs, progress, settings.device)
        except DataError as error:
            _log.warning("cannot tune on %s: %s", candidate, error)
    found = default_weights(bundle.objective)
    _log.warning(
        "%s: no dev split to tune weights on; using scale %g, penalty %g, prior %g; give data with one by --dev",
        bundle.run, found.weights.scale, found.weights.penalty, found.weights.prior,
    )  # fmt: skip
    return found


def _same(bundle: Bundle, data: Path) -> bool:
    """Return whether the run was trained on these data."""
    return (data / DESCRIPTION).is_file() and read_json(data / DESCRIPTION)["digest"] == bundle.digest


def _has_dev(data: Path) -> bool:
    if (data / DESCRIPTION).is_file():
        return (data / "utterances" / f"{DEV}.jsonl").is_file()
    return (data / DEV / "wav.scp").is_file()


def _finish(
    run: Path, data: Path, material: DecodingSplit, plan: RecognitionPlan, tuned: TunedWeights,
    found: list[RecognisedUtterance],
) -> DecodingResult:  # fmt: skip
    """Score, and write all results; wer.json last."""
    wer = Wer.from_words(material.transcripts, {item.utterance: item.words for item in found})
    folder = _place(make_inside(run, FOLDER), f"{material.name}-{plan.grammar.name}".lstrip("."), data)
    make_folder(folder)
    (folder / "wer.json").unlink(missing_ok=True)
    wer.save(folder)
    write_text(folder / "hyp.txt", "".join(" ".join([item.utterance, *item.words]) + "\n" for item in found))
    write_text(folder / "hyp.ctm", "".join(line for item in found for line in ctm(item)))
    if plan.nbest:
        write_text(
            folder / "nbest.jsonl", "".join(json.dumps(_nbest(item), ensure_ascii=False) + "\n" for item in found)
        )
    seconds, spent = sum(item.seconds for item in found), sum(item.spent for item in found)
    weights = plan.weights[0]
    report = wer.describe() | {
        "split": material.split,
        "language": plan.grammar.name,
        "data": str(data),
        "scale": weights.scale,
        "penalty": weights.penalty,
        "prior": weights.prior,
        "tuned_on": tuned.on,
        "beam": plan.pruning.beam,
        "max_active": plan.pruning.max_active,
        "seconds": seconds,
        "real_time_factor": spent / seconds if seconds else 0.0,
        "incomplete": sum(not item.complete for item in found),
    }
    report["decoded"] = _log_decoding(run, material, report)
    write_json(folder / "wer.json", report)
    return DecodingResult(folder, wer, report, found)


def _place(parent: Path, name: str, data: Path) -> Path:
    """Return a folder for results on ``data``, not used for results on other data of the same name."""
    folder, number = inside(parent, name, what="data"), 1
    while _is_of_other(data, folder):
        number += 1
        folder = inside(parent, f"{name}-{number}", what="data")
    return folder


def _is_of_other(data: Path, folder: Path) -> bool:
    try:
        return Path(read_json(folder / "wer.json")["data"]).resolve() != data.resolve()
    except (OSError, DataError, KeyError, TypeError):  # no results, or incomplete ones
        return False


def ctm(item: RecognisedUtterance) -> Iterator[str]:
    """Yield one line per word: utterance, channel, begin, length, word."""
    for word, (begin, end) in zip(item.words, item.times, strict=True):
        yield f"{item.utterance} 1 {begin:.2f} {end - begin:.2f} {word}\n"


def _nbest(item: RecognisedUtterance) -> dict[str, Any]:
    found = [{"cost": cost, "words": " ".join(words)} for cost, words in item.alternatives]
    return {"utterance": item.utterance, "best": found}


def _log_decoding(run: Path, material: DecodingSplit, report: dict[str, Any]) -> int:
    """Record that a split was decoded; return how often it was, also from other folders."""
    path, said = run / FOLDER / LOG, digest(material.transcripts)
    row = {"material": material.name, "transcripts": said} | {
        name: report[name] for name in ("language", "wer", "scale", "penalty", "prior")
    }
    append_text(path, json.dumps(row, ensure_ascii=False) + "\n")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return sum(row.get("transcripts") == said for row in rows)
