"""Training from a flat start, on made-up speech whose alignment is known, and on AN4."""

from __future__ import annotations

import gzip
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from artificial_speech import LEXICON, SETTINGS, agreement, speech, trained
from roundelay.errors import DataError, SettingsError
from roundelay.speech.gmm.arrays import Array
from roundelay.speech.gmm.decision_tree import Tree
from roundelay.speech.gmm.gmm_training import GmmSettings, equal_alignment, train_gmm
from segment_agreement import SegmentAgreement, compare_segments


@pytest.mark.parametrize("adapt", [False, True])
def test_true_alignment_is_found_from_a_flat_start(adapt: bool) -> None:
    data = speech()
    alignments = trained(adapt).align(data.features, data.transcripts, data.speakers)
    assert not alignments.failures
    assert agreement(alignments, data).frame_share > 0.93
    for utterance, senones in alignments.items():
        assert len(senones) == len(data.features[utterance])
        assert senones.dtype == np.int32
        assert 0 <= senones.min() <= senones.max() < trained(adapt).tree.num_senones
        assert [word for word, _, _ in alignments.words(utterance)] == data.transcripts[utterance]


def test_settings_and_seed_decide_the_model() -> None:
    data = speech()
    again = train_gmm(data.features, data.transcripts, data.speakers, LEXICON, SETTINGS)
    assert np.array_equal(again.model.gmm.means, trained().model.gmm.means)
    assert np.array_equal(again.model.transitions.stay, trained().model.transitions.stay)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_number_of_processes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = speech()
    monkeypatch.setattr("roundelay.speech.gmm.corpus_passes.FRAMES_PER_CHUNK", 900)  # several chunks
    settings = GmmSettings(**{**SETTINGS.__dict__, "adapt": True, "mono_iterations": 4, "iterations": 3})
    one, two = (train_gmm(data.features, data.transcripts, data.speakers, LEXICON, settings, jobs=j) for j in (1, 2))
    assert np.array_equal(one.model.gmm.means, two.model.gmm.means)
    first = one.align(data.features, data.transcripts, data.speakers)
    second = two.align(data.features, data.transcripts, data.speakers, jobs=2)
    assert all(np.array_equal(first[u], second[u]) for u in data.features)


def test_read_only_features_are_taken() -> None:
    data = speech()
    fixed = {u: x.copy() for u, x in data.features.items()}
    for x in fixed.values():
        x.flags.writeable = False
    alignments = trained().align(fixed, data.transcripts, data.speakers)
    assert agreement(alignments, data).frame_share > 0.93
    plain = GmmSettings(**{**SETTINGS.__dict__, "input": "final", "iterations": 2, "mono_iterations": 3})
    assert train_gmm(fixed, data.transcripts, data.speakers, LEXICON, plain).model.gmm.num_features == 4


def test_progress_is_told_stage_by_stage() -> None:
    data, seen = speech(), []
    train_gmm(data.features, data.transcripts, data.speakers, LEXICON, SETTINGS, lambda *step: seen.append(step))
    assert seen[0] == ("monophones", 1, 8)
    assert seen[-1] == ("triphones", 5, 5)
    assert len(seen) == 13


def test_utterance_too_short_is_listed_with_the_reason() -> None:
    data = speech()
    features = {**data.features, "s0-short": data.features["s0-000"][:4]}
    transcripts = {**data.transcripts, "s0-short": ["EA"]}
    speakers = {**data.speakers, "s0-short": "s0"}
    alignments = trained().align(features, transcripts, speakers)
    assert alignments.failures == {"s0-short": "4 frames are too few for the 9 states of its shortest pronunciation"}
    model = train_gmm(features, transcripts, speakers, LEXICON, SETTINGS)
    assert list(model.failures) == ["s0-short"]


def test_training_on_nothing_but_short_utterances_is_refused() -> None:
    features = {"u1": np.ones((4, 4), np.float32)}
    with pytest.raises(DataError, match="u1: 4 frames are too few for the 9 states"):
        train_gmm(features, {"u1": ["EA"]}, {"u1": "s"}, LEXICON, SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros((0, 4))}, r"s1-001: features of shape \(0, 4\)"),
        ({"features": np.zeros(7)}, r"s1-001: features of shape \(7,\)"),
        ({"features": np.full((50, 4), np.nan)}, "s1-001: features are not finite at frame 0"),
        ({"features": np.zeros((50, 5))}, "s1-001: 5 features per frame, but the utterances before have 4"),
        ({"words": ["AE", "ZEBRA"]}, "s1-001: 'ZEBRA' has no pronunciation"),
        ({"speaker": None}, "s1-001: has no speaker"),
        ({"features": None}, "s1-001: has a transcript but no features"),
    ],
)
def test_bad_input_names_the_utterance(change: dict[str, object], message: str) -> None:
    data = speech()
    tables: dict[str, dict[str, object]] = {
        "features": dict(data.features),
        "words": dict(data.transcripts),
        "speaker": dict(data.speakers),
    }
    for table, value in change.items():
        tables[table].pop("s1-001")
        if value is not None:
            tables[table]["s1-001"] = value
    with pytest.raises(DataError, match=message):
        train_gmm(tables["features"], tables["words"], tables["speaker"], LEXICON, SETTINGS)  # type: ignore[arg-type]  # wrong on purpose


def test_no_utterances_are_refused() -> None:
    with pytest.raises(DataError, match="no utterance has a transcript"):
        train_gmm({}, {}, {}, LEXICON, SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, r"gmm\.iterations must be at least 1, not 0"),
        ({"num_gaussians": 5}, r"gmm\.num_gaussians must be at least num_senones, 24, not 5"),
        ({"input": "fbnk"}, r"did you mean 'fbank'\?"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        GmmSettings(**{**SETTINGS.__dict__, **change})


def test_jobs_must_be_at_least_one() -> None:
    data = speech()
    with pytest.raises(SettingsError, match="jobs must be at least 1, not 0"):
        trained().align(data.features, data.transcripts, jobs=0)


def test_equal_alignment_divides_evenly() -> None:
    alignment = equal_alignment([((1, 2),), ((3,), (4, 5))], 32, Tree.monophone(6))
    assert alignment is not None
    assert alignment.phones.tolist() == [0, 1, 2, 3, 0]
    assert alignment.words.tolist() == [-1, 0, 0, 1, -1]
    assert len(alignment.senones) == 32
    assert set(np.unique(alignment.senones, return_counts=True)[1]) <= {2, 3, 4, 5, 6}
    assert equal_alignment([((1, 2),)], 5, Tree.monophone(6)) is None
    tight = equal_alignment([((1, 2),)], 11, Tree.monophone(6))
    assert tight is not None
    assert tight.phones.tolist() == [1, 2]


def test_flat_start_on_a_sample_trains_on_all() -> None:
    data = speech()
    settings = GmmSettings(**{**SETTINGS.__dict__, "mono_hours": 0.004})
    model = train_gmm(data.features, data.transcripts, data.speakers, LEXICON, settings)
    assert agreement(model.align(data.features, data.transcripts, data.speakers), data).frame_share > 0.9


@cache
def _an4(folder: Path) -> tuple[dict[str, Array], dict[str, list[str]], dict[str, str]]:
    soundfile = pytest.importorskip("soundfile")
    from roundelay.speech.features.mel_features import FeatureSettings, extract

    def table(name: str) -> dict[str, list[str]]:
        lines = (folder / name).read_text().splitlines()
        return {line.split()[0]: line.split()[1:] for line in lines}

    text = dict(list(table("train/text").items())[:200])
    paths = table("train/wav.scp")
    features = {u: extract(soundfile.read(folder / paths[u][0], dtype="float32")[0], FeatureSettings()) for u in text}
    return features, text, {u: names[0] for u, names in table("train/utt2spk").items()}


def _shipped(folder: Path) -> dict[str, list[tuple[str, int, int]]]:
    """The alignments in the pack, as phones."""
    found = {}
    with gzip.open(folder / "align" / "states.txt.gz", "rt") as lines:
        for line in lines:
            utterance, *states = line.split()
            begin, segments = 0, []
            for state in states:
                name, frames = state.rsplit(":", 1)
                phone = re.split(r"\[|_s\d", name)[0].upper()
                segments.append(("sil" if phone == "SIL" else phone, begin, begin + int(frames)))
                begin += int(frames)
            found[utterance] = segments
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an4_agrees_with_the_alignments_of_its_pack(corpora: Path) -> None:
    from roundelay.speech.language.lexicon import Lexicon

    folder = corpora / "an4"
    features, text, speakers = _an4(folder)
    settings = GmmSettings(num_senones=200, num_gaussians=600, mono_gaussians=300, mono_iterations=14, iterations=8)
    model = train_gmm(features, text, speakers, Lexicon.read(folder / "lexicon.txt"), settings)
    alignments = model.align(features, text, speakers)
    assert not alignments.failures
    shipped = _shipped(folder)
    total = sum((compare_segments(alignments.segments(u), shipped[u]) for u in alignments), SegmentAgreement())
    assert total.frame_share > 0.82


def _benchmark(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_gmm", root / "benchmarks" / "gmm.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_monophones_are_as_good_as_those_of_kaldi_hmm_gmm(root: Path, tmp_path: Path) -> None:
    benchmark = _benchmark(root)
    python = benchmark.make_environment(tmp_path)
    if python is None:
        pytest.skip("kaldi-hmm-gmm 1.1.4 could not be installed in a virtual environment of its own")
    ours, theirs = benchmark.compare_on_made_up_speech(python, tmp_path)
    assert ours > 0.9
    assert ours > theirs - 0.03
