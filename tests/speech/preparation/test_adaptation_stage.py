"""Preparation with adapted features and speaker vectors, and that held-out transcripts have no part in them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tone_corpus
from roundelay.errors import DataError, SettingsError
from roundelay.files import read_json
from roundelay.speech.features.array_store import shard_name
from roundelay.speech.gmm.fmllr import SpeakerTransforms
from roundelay.speech.gmm.hmm_gmm import HmmGmm
from roundelay.speech.preparation.adaptation_stage import RECOGNISED, TRANSFORMS
from roundelay.speech.preparation.data_summary import check_prepared, summary_lines
from roundelay.speech.preparation.pipeline import (
    IvectorSettings,
    LexiconSettings,
    PrepareSettings,
    open_prepared,
    prepare,
)
from roundelay.speech.preparation.prepared_data import PreparedData

SIZE = 5
SETTINGS = replace(
    tone_corpus.SETTINGS,
    hmm=replace(tone_corpus.SETTINGS.hmm, adapt=True),
    ivectors=IvectorSettings(SIZE, num_gaussians=4),
)
STAGES = ["corpus", "features", "lexicon", "hmm", "alignment", "graph", "adapted", "ivectors", "summary"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tone_corpus.make(tmp_path_factory.mktemp("adapted") / "corpus", train=12, dev=12)


@pytest.fixture(scope="module")
def prepared(corpus: Path) -> Path:
    out = corpus.parent / "data"
    assert prepare(corpus, out, SETTINGS).done == STAGES
    return out


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    subprocess.run(["cp", "-a", prepared, tmp_path / "data"], check=True)
    return tmp_path / "data"


def reference_of(data: PreparedData, split: str) -> dict[str, list[str]]:
    return {name: list(words) for name, words in data.transcripts(split).items()}


def test_adapted_features_are_there(prepared: Path) -> None:
    data = open_prepared(prepared)
    for split in data.splits:
        plain, adapted = data.features(split), data.features(split, "adapted")
        assert adapted.dim == 40
        assert adapted.ids == plain.ids
        assert np.array_equal(adapted.lengths, plain.lengths)
        assert all(np.isfinite(adapted[name]).all() for name in adapted)
    assert check_prepared(prepared)["problems"] == []
    text = "\n".join(summary_lines(check_prepared(prepared)))
    assert "adapted    dev: 2 of 2 speakers have a matrix" in text


def test_training_speakers_use_transcripts_and_others_what_was_recognised(prepared: Path) -> None:
    data, model = open_prepared(prepared), HmmGmm.load(prepared / "hmm")
    recognised = read_json(prepared / "adapted" / "dev" / RECOGNISED)
    assert not (prepared / "adapted" / "train" / RECOGNISED).exists()
    for split, words in (("train", reference_of(data, "train")), ("dev", recognised)):
        features = {name: np.array(rows) for name, rows in data.features(split).items()}
        ours = model.speaker_transforms(features, words, data.speakers(split))
        kept = SpeakerTransforms.load(prepared / "adapted" / split / TRANSFORMS)
        for name, rows in features.items():
            speaker = data.speakers(split)[name]
            np.testing.assert_allclose(kept.matrices[speaker], ours.matrices[speaker], atol=1e-5)
            np.testing.assert_allclose(data.features(split, "adapted")[name], ours(speaker, rows), atol=1e-4)


def test_the_first_pass_hears_the_words(prepared: Path) -> None:
    """Chords are easy: nearly all utterances are recognised."""
    recognised = read_json(prepared / "adapted" / "dev" / RECOGNISED)
    reference = reference_of(open_prepared(prepared), "dev")
    assert sum(recognised[name] == words for name, words in reference.items()) >= 10


def test_a_second_preparation_has_nothing_to_do(corpus: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()}
    assert prepare(corpus, prepared, SETTINGS).done == []
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()} == before


def test_what_is_missing_or_was_interrupted_is_made_again(corpus: Path, data: Path) -> None:
    shard = data / "adapted" / "dev" / shard_name(0)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4])
    (data / "stages" / "ivectors.json").unlink()  # as it is while the stage is under way
    assert prepare(corpus, data, SETTINGS).done == ["adapted", "ivectors"]
    assert shard.read_bytes() == whole


def test_vectors_are_made_again_alone(corpus: Path, data: Path) -> None:
    other = replace(SETTINGS, ivectors=IvectorSettings(3, "utterance", num_gaussians=4))
    outcome = prepare(corpus, data, other)
    assert outcome.done == ["ivectors", "summary"]
    vectors = outcome.data.ivectors("dev")
    assert len({vectors[name].tobytes() for name in vectors}) == 12


def test_without_adaptation_what_is_left_over_is_refused(corpus: Path, data: Path) -> None:
    plain = prepare(corpus, data, tone_corpus.SETTINGS).data
    assert (data / "adapted" / "dev").is_dir()
    with pytest.raises(DataError, match="prepared without adapted; prepare the data with --adapt"):
        plain.features("dev", "adapted")
    with pytest.raises(DataError, match="prepared without ivectors; prepare the data with --ivectors"):
        plain.ivectors("dev")
    with pytest.raises(SettingsError, match="unknown kind of features 'adpted'; did you mean 'adapted'"):
        plain.features("dev", "adpted")


def test_held_out_transcripts_have_no_part_in_held_out_features(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    """With quite other transcripts of dev, all that dev's inputs are made of comes out the same, byte by byte."""
    subprocess.run(["cp", "-a", corpus, tmp_path / "corpus"], check=True)
    text = tmp_path / "corpus" / "dev" / "text"
    names = [line.split()[0] for line in text.read_text().splitlines()]
    text.write_text("".join(f"{name} AS\n" for name in names))
    other = prepare(tmp_path / "corpus", tmp_path / "data", SETTINGS).data
    assert other.transcripts("dev") != open_prepared(prepared).transcripts("dev")
    assert not np.array_equal(other.alignments("dev")[names[0]], open_prepared(prepared).alignments("dev")[names[0]])
    for folder in ("adapted/dev", "adapted/train", "ivectors/dev", "hmm", "graphs", "features/dev"):
        files = [path for path in sorted((prepared / folder).rglob("*")) if path.is_file()]
        assert files
        for path in files:
            assert path.read_bytes() == (other.folder / path.relative_to(prepared)).read_bytes(), path


@pytest.mark.slow
def test_held_out_transcripts_redo_no_adaptation_and_training_transcripts_do(corpus: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "corpus", tmp_path / "data"
    subprocess.run(["cp", "-a", corpus, own], check=True)
    prepare(own, out, SETTINGS)
    trained = [stage for stage in STAGES if stage not in ("features", "lexicon", "ivectors")]
    for split, done in (("dev", ["corpus", "alignment", "summary"]), ("train", trained)):
        text = own / split / "text"
        text.write_text(text.read_text().replace("SEE", "AS", 1))
        assert prepare(own, out, SETTINGS).done == done


def test_silent_and_short_utterances_pass_through(tmp_path: Path) -> None:
    """One without a frame, one without a word to recognise, and a speaker who has nothing else."""
    corpus = tone_corpus.make(tmp_path / "corpus", train=12, dev=3)
    soundfile.write(corpus / "dev" / "dev1-u01.wav", np.zeros(160), tone_corpus.RATE)
    soundfile.write(corpus / "dev" / "dev0-u00.wav", np.zeros(8000), tone_corpus.RATE)
    soundfile.write(corpus / "train" / "train0-u00.wav", np.zeros(160), tone_corpus.RATE)
    outcome = prepare(corpus, tmp_path / "data", SETTINGS)
    adapted = outcome.data.features("dev", "adapted")
    assert adapted["dev1-u01"].shape == (0, 40)
    assert np.isfinite(adapted["dev0-u00"]).all()
    assert outcome.summary["adapted"]["dev"] == {"speakers": 1, "with_matrix": 0}
    assert outcome.data.ivectors("dev")["dev1-u01"].tolist() == [[0] * SIZE]


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--adapt needs an HMM-GMM"):
        PrepareSettings(hmm=SETTINGS.hmm, alignments=tmp_path)
    with pytest.raises(SettingsError, match="unknown vocabulary 'trian'; did you mean 'train'"):
        LexiconSettings(vocabulary="trian")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="size must be at least 1, not 0"):
        IvectorSettings(0)
    with pytest.raises(SettingsError, match="unknown unit 'speker'; did you mean 'speaker'"):
        IvectorSettings(per="speker")  # type: ignore[arg-type]
