"""Prepare a corpus for training: features, lexicon, HMM-GMM, alignment, language model and graphs.

Each stage runs once for the same inputs and settings (see ``cached_stages``); ``prepare`` runs the missing ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from roundelay.config import Positive, check_bounds
from roundelay.corpora.data_directory import Utterance, find_splits, read_split
from roundelay.errors import DataError, SettingsError, suggest
from roundelay.files import digest, file_digest, read_json, write_json, write_text
from roundelay.formats.kaldi_archives import read_scp
from roundelay.formats.text_tables import read_table
from roundelay.speech.features.array_store import SHARD_SUFFIX
from roundelay.speech.features.extraction import Copy, Extraction, list_copies
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.features.normalisation import SCOPES, Scope
from roundelay.speech.gmm.gmm_training import GmmSettings
from roundelay.speech.language.lexicon import Guess, Lexicon, complete_lexicon, guess_graphemes, read_pronunciations
from roundelay.speech.preparation import adaptation_stage, alignment_stage, cached_stages
from roundelay.speech.preparation.cached_stages import Stage, Stages
from roundelay.speech.preparation.data_summary import compare_vocabulary, summarise, write_picture
from roundelay.speech.preparation.ivector_stage import IvectorMaker, IvectorSettings
from roundelay.speech.preparation.language_stage import VOCABULARY, LanguageSettings, graph_name, measure, write_graphs
from roundelay.speech.preparation.preparation_preview import PreparationPreview, expected_seconds, hours_of
from roundelay.speech.preparation.prepared_data import (
    DESCRIPTION,
    PreparedData,
    open_prepared,
    sealed,
    write_utterances,
)

__all__ = [
    "IvectorSettings",
    "LexiconSettings",
    "PreparationOutcome",
    "PrepareSettings",
    "PreparedData",
    "open_prepared",
    "prepare",
    "preview",
]

Progress = Callable[[str, int, int], None]
"""Called with the stage, the number of finished steps and the total."""

VOCABULARIES = ("lexicon", "train")
_VERSION = 2
"""Increased when the same settings give other data than before."""


@dataclass(frozen=True)
class LexiconSettings:
    """Sources of pronunciations."""

    lexicon: Path | None = None
    """The words that can be recognised; default: lexicon.txt of the corpus, if there is one."""
    dictionary: Path | None = None
    """Dictionary for words of the transcripts that the lexicon lacks, such as the CMU dictionary."""
    unknown: Literal["none", "grapheme", "espeak"] = "none"
    """How to guess the pronunciation of other words; with none they are an error."""
    vocabulary: Literal["lexicon", "train"] = "lexicon"
    """Words that can be recognised: those of lexicon and training transcripts, or of training transcripts only."""

    def __post_init__(self) -> None:
        if self.vocabulary not in VOCABULARIES:
            raise SettingsError(f"unknown vocabulary {suggest(self.vocabulary, VOCABULARIES)}")


@dataclass(frozen=True)
class PrepareSettings:
    """Settings of preparation."""

    features: FeatureSettings = field(default_factory=FeatureSettings)
    normalise: Scope = "speaker"
    speeds: tuple[Annotated[float, Meta(ge=0.5, le=2)], ...] = ()
    """Copies of the training utterances at these speeds, such as 0.9 and 1.1."""
    given_features: bool = False
    """Whether to use the features in each split's feats.scp; ``features`` then describes them."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    hmm: GmmSettings = field(default_factory=GmmSettings)
    hmm_hours: Positive = 10.0
    """Maximum hours of training utterances that train the HMM-GMM; it aligns all utterances."""
    alignments: Path | None = None
    """Alignments to import instead of training an HMM-GMM."""
    language: LanguageSettings = field(default_factory=LanguageSettings)
    ivectors: IvectorSettings | None = None
    """Speaker vectors to make; None: no vectors."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.normalise not in SCOPES:
            raise SettingsError(f"unknown scope of normalisation {suggest(self.normalise, SCOPES)}")
        if 1.0 in self.speeds or len(set(self.speeds)) != len(self.speeds):
            raise SettingsError(f"speeds must be different and not 1, which is always included; not {self.speeds}")
        if self.speeds and self.given_features:
            raise SettingsError("speeds need audio, but features are given; leave --speed out")
        if self.hmm.adapt and self.alignments:
            raise SettingsError("--adapt needs an HMM-GMM, but none is trained if alignments are given")


@dataclass(frozen=True)
class PreparationOutcome:
    """Result of a preparation."""

    data: PreparedData
    done: list[str]
    """The stages that ran; none if the folder was complete."""
    summary: dict[str, Any]


def prepare(
    corpus: str | os.PathLike[str], out: str | os.PathLike[str], settings: PrepareSettings | None = None, *,
    jobs: int = 1, progress: Progress | None = None,
) -> PreparationOutcome:  # fmt: skip
    """Prepare a corpus into a folder; results of the same inputs that exist there are kept."""
    if jobs < 1:
        raise SettingsError(f"jobs must be at least 1, not {jobs}")
    work = _Preparation(Path(corpus), Path(out), settings or PrepareSettings(), jobs, progress or (lambda *_: None))
    return work.run()


def preview(
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: PrepareSettings | None = None,
    *,
    jobs: int = 1,
) -> PreparationPreview:
    """Return what `prepare` would do, without writing anything."""
    work = _Preparation(Path(corpus), Path(out), settings or PrepareSettings(), jobs, lambda *_: None)
    plan = work.plan()
    missing = plan.missing()
    splits = {name: (len(some), hours_of(some)) for name, some in work.utterances.items()}
    done = [stage.name for stage in plan.stages if stage.name not in missing]
    return PreparationPreview(splits, missing, done, expected_seconds(missing, splits, jobs), jobs)


class _Preparation:
    """One preparation: its corpus, its folder, its stages."""

    def __init__(self, corpus: Path, out: Path, settings: PrepareSettings, jobs: int, progress: Progress) -> None:
        self.corpus, self.out, self.settings, self.jobs, self.progress = corpus, out, settings, jobs, progress
        self.folders = find_splits(corpus)
        self.utterances = {name: read_split(folder) for name, folder in self.folders.items()}
        self.clean = {name: _clean_copies(folder) for name, folder in self.folders.items()}
        self.train_splits = _train_splits(list(self.folders))
        own = corpus / "lexicon.txt"
        self.given = settings.lexicon.lexicon or (own if own.is_file() else None)
        given_features = settings.given_features
        self.archives = {
            name: read_scp(path / "feats.scp") if given_features else None for name, path in self.folders.items()
        }

    def run(self) -> PreparationOutcome:
        cached_stages.create_folder(self.out)
        with cached_stages.lock_folder(self.out):
            plan = self.plan()
            if plan.missing():
                (self.out / DESCRIPTION).unlink(missing_ok=True)
            done = plan.run()
            if done or not self._is_described():
                self._describe(plan)
                write_picture(open_prepared(self.out), self.out / "picture.svg")
        return PreparationOutcome(open_prepared(self.out), done, read_json(self.out / "summary.json"))

    def _is_described(self) -> bool:
        """Return whether there is a description that can be read."""
        try:
            open_prepared(self.out)
        except DataError:
            return False
        return True

    def plan(self) -> Stages:
        """List the stages with all of their inputs."""
        settings, words = self.settings, {name: _words(us) for name, us in self.utterances.items()}
        trained = digest({name: words[name] for name in self.train_splits})
        heard = {name: [_heard(u) for u in us] for name, us in self.utterances.items()}
        hmm = {"alignments": _identity(settings.alignments)} if settings.alignments else asdict(settings.hmm)
        sources = {
            "lexicon": _identity(self.given), "dictionary": _identity(settings.lexicon.dictionary),
            "unknown": settings.lexicon.unknown,
        }  # fmt: skip
        language = asdict(settings.language) | {"arpa": _identity(settings.language.arpa)}
        extracted = {
            "version": _VERSION, "heard": digest(heard), "features": asdict(settings.features),
            "normalise": settings.normalise, "speeds": settings.speeds, "train": self.train_splits,
            "given": digest({name: _archived(archives) for name, archives in self.archives.items()}),
        }  # fmt: skip
        modelled = {
            "hmm": hmm, "hours": settings.hmm_hours, "words": trained,
            "clean": digest([self.clean[name] for name in self.train_splits]),
        }  # fmt: skip
        spelled = {"sources": sources, "words": digest(sorted(self._said(self.folders)))}
        decoded = {"language": language, "vocabulary": settings.lexicon.vocabulary, "words": trained}
        aligned = {"words": digest(words), "clean": digest(self.clean)}
        # Held-out transcripts are an input of the alignment and the summary, not of stages that decode or adapt.  Only
        # the lexicon has pronunciations of their words.
        listed = [
            Stage("corpus", {"version": _VERSION, "heard": digest(heard), "words": digest(words)}, self._corpus),
            Stage("features", extracted, self._features),
            Stage("lexicon", spelled, self._lexicon),
            Stage("hmm", modelled, self._hmm, ("features", "lexicon")),
            Stage("alignment", aligned, self._alignment, ("hmm",)),
            Stage("graph", decoded, self._graph, ("lexicon", "hmm")),
        ]
        if settings.hmm.adapt:
            search = {"words": trained, "search": adaptation_stage.SEARCH}
            listed.append(Stage("adapted", search, self._adapted, ("features", "hmm", "graph")))
        if settings.ivectors:
            listed.append(Stage("ivectors", asdict(settings.ivectors), self._ivectors, ("features",)))
        return Stages(
            self.out, [*listed, Stage("summary", {}, self._summary, tuple(stage.name for stage in listed))], self.jobs
        )

    def _said(self, names: Iterable[str]) -> set[str]:
        """Return the words in the transcripts of some splits."""
        return {word for name in names for u in self.utterances[name] for word in u.words}

    def _all(self) -> dict[str, list[Copy]]:
        return {
            name: list_copies(utterances, self.settings.speeds if name in self.train_splits else ())
            for name, utterances in self.utterances.items()
        }

    def _corpus(self) -> Iterable[Path]:
        folder = self.out / "utterances"
        folder.mkdir(exist_ok=True)
        for name, utterances in self.utterances.items():
            write_utterances(folder / f"{name}.jsonl", utterances)
        return [folder / f"{name}.jsonl" for name in self.utterances]

    def _features(self) -> Iterable[Path]:
        items = self._all()
        total, before = sum(map(len, items.values())), 0
        for name, some in items.items():
            folder = self.out / "features" / name
            extraction = Extraction(folder, some, self.settings.features, self.settings.normalise, self.archives[name])
            extraction.run(self.jobs, lambda done, before=before: self.progress("features", before + done, total))  # type: ignore[misc]  # before is bound now
            before += len(some)
        return cached_stages.files_under(*(self.out / "features" / name for name in items))

    def _lexicon(self) -> Iterable[Path]:
        sources = self.settings.lexicon
        needed = self._said(self.folders)
        known = read_pronunciations(self.given) if self.given else {}
        if sources.dictionary:
            known |= read_pronunciations(sources.dictionary, only=needed - known.keys())
        phones = {phone for variants in known.values() for variant in variants for phone in variant}
        lexicon = complete_lexicon(needed, known, _guess(sources.unknown, phones), str(self.given or self.corpus))
        names = [self.out / name for name in ("lexicon.txt", "phones.txt", "words.txt", "unknown.txt")]
        lexicon.write(names[0])
        lexicon.write_symbols(names[1], names[2])
        write_text(names[3], "".join(f"{word}\n" for word in lexicon.unknown))
        return names

    def _aligner(self) -> alignment_stage.Aligner:
        return alignment_stage.Aligner(
            self.out, Lexicon.read(self.out / "lexicon.txt"), self._all(), self.clean, self.jobs, self.progress
        )

    def _hmm(self) -> Iterable[Path]:
        settings, aligner = self.settings, self._aligner()
        if settings.alignments:
            return aligner.write_monophone_tree()
        return aligner.train(self.train_splits, settings.hmm, settings.features, settings.hmm_hours)

    def _alignment(self) -> Iterable[Path]:
        aligner = self._aligner()
        if self.settings.alignments:
            return aligner.import_alignments(self.settings.alignments, self.settings.features)
        return aligner.align()

    def _texts(self, training: bool) -> list[tuple[str, ...]]:
        """List the transcripts of the training splits, or of the others."""
        names = [name for name in self.folders if (name in self.train_splits) == training]
        return [u.words for name in names for u in self.utterances[name]]

    def _graph(self) -> Iterable[Path]:
        # Held-out words have a pronunciation for the alignment, but only words of lexicon and training are recognised.
        words = self._said(self.train_splits)
        if self.given and self.settings.lexicon.vocabulary == "lexicon":
            words |= read_pronunciations(self.given).keys()
        write_text(self.out / VOCABULARY, "".join(f"{word}\n" for word in sorted(words)))
        return self.out / VOCABULARY, *write_graphs(
            self.out, self.settings.language, self._texts(training=True), self.progress
        )

    def _adapted(self) -> Iterable[Path]:
        graph = graph_name(self.settings.language)
        return adaptation_stage.Adapter(self.out, self._all(), graph, self.jobs, self.progress).run(self.train_splits)

    def _ivectors(self) -> Iterable[Path]:
        settings = self.settings
        assert settings.ivectors is not None, "the stage is planned only with settings"
        maker = IvectorMaker(self.out, self._all(), settings.ivectors, settings.features, self.jobs, self.progress)
        return maker.run(self.train_splits)

    def _summary(self) -> Iterable[Path]:
        settings = self.settings
        summary = summarise(self.out, self._all(), settings.features)
        texts = {name: [u.words for u in us] for name, us in self.utterances.items()}
        summary["vocabulary"] = compare_vocabulary(self.out, texts, self.train_splits)
        summary["language"] = measure(
            self.out, settings.language, self._texts(training=True), self._texts(training=False)
        )
        if settings.hmm.adapt:
            summary["adapted"] = adaptation_stage.describe(self.out, self.folders)
        write_json(self.out / "summary.json", summary)
        return [self.out / "summary.json"]

    def _describe(self, plan: Stages) -> None:
        """Write the description, which completes the folder."""
        counts = alignment_stage.senone_counts(self.out, self.train_splits)
        description = {
            "version": _VERSION,
            "corpus": str(self.corpus.absolute()),
            "digest": plan.digests["summary"],
            "splits": list(self.folders),
            "train_splits": self.train_splits,
            "settings": json.loads(json.dumps(asdict(self.settings), default=str)),
            "stages": plan.digests,
            "seconds": plan.seconds(),
            "senone_counts": counts.tolist(),
            "files": {name: sha256 for name, sha256 in plan.sums().items() if not name.endswith(SHARD_SUFFIX)},
        }
        write_json(self.out / DESCRIPTION, sealed(description))


def _train_splits(names: Sequence[str]) -> list[str]:
    """List the splits to train on: those whose names begin with train, otherwise the first split."""
    return [name for name in names if name.startswith("train")] or list(names[:1])


def _clean_copies(folder: Path) -> dict[str, str]:
    """Map noisy copies to their clean originals, whose alignment they share."""
    return read_table(folder / "utt2clean") if (folder / "utt2clean").is_file() else {}


def _words(utterances: Iterable[Utterance]) -> str:
    """Return the digest of transcripts, computed piece by piece since they may be long."""
    total = hashlib.sha256()
    for utterance in utterances:
        total.update(f"{utterance.id} {' '.join(utterance.words)}\n".encode())
    return total.hexdigest()


def _heard(utterance: Utterance) -> list[Any]:
    """Return what identifies an utterance's samples; a file's size and time are used instead of its content."""
    try:
        status = utterance.audio.stat()
    except OSError as error:
        raise DataError(f"{utterance.audio}: {error.strerror} (utterance {utterance.id})") from None
    return [
        utterance.id, utterance.speaker, str(utterance.audio.absolute()), utterance.channel, utterance.begin,
        utterance.end, status.st_size, status.st_mtime_ns,
    ]  # fmt: skip


def _archived(entries: Mapping[str, tuple[Path, int]] | None) -> list[Any]:
    """Return what identifies given features: positions, and sizes and times of their archives."""
    if entries is None:
        return []
    files = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path, _ in entries.values()}
    return [files, {name: [str(path), position] for name, (path, position) in entries.items()}]


def _identity(path: Path | None) -> str | None:
    """Return the digest of a file, or of the names, sizes and times in a folder."""
    if path is None:
        return None
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        return digest([[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files])
    return file_digest(path)


def _guess(kind: str, phones: Iterable[str]) -> Guess | None:
    if kind == "espeak":
        from roundelay.speech.language.espeak_pronunciations import EspeakPronouncer

        return EspeakPronouncer(phones)
    return guess_graphemes if kind == "grapheme" else None
