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
from roundelay.speech.features.array_store import shard_name, write_store
from roundelay.speech.features.minibatches import ChunkMinibatches, FrameMinibatches, UtteranceMinibatches
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.gmm.fmllr import SpeakerTransforms
from roundelay.speech.gmm.hmm_gmm import HmmGmm
from roundelay.speech.language.ngram import END, flat
from roundelay.speech.preparation.adaptation_stage import RECOGNISED, TRANSFORMS
from roundelay.speech.preparation.data_summary import check_prepared, summary_lines
from roundelay.speech.preparation.language_stage import restrict_vocabulary
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


def test_vectors_stand_for_speakers(prepared: Path) -> None:
    data = open_prepared(prepared)
    for split in data.splits:
        vectors, speakers = data.ivectors(split), data.speakers(split)
        assert vectors.dim == SIZE
        assert vectors.ids == data.features(split).ids
        by_speaker = {speakers[name]: vectors[name] for name in vectors}
        assert len({row.tobytes() for row in by_speaker.values()}) == 2
        for name in vectors:
            assert vectors[name].shape == (1, SIZE)
            assert np.array_equal(vectors[name], by_speaker[speakers[name]])


def test_vectors_hear_what_normalisation_took_out(corpus: Path, tmp_path: Path) -> None:
    """A voice through a duller channel has another vector, though its normalised features hardly differ."""
    subprocess.run(["cp", "-a", corpus, tmp_path / "corpus"], check=True)
    for path in sorted((tmp_path / "corpus").glob("*/*1-u*.wav")):
        samples, rate = soundfile.read(path)
        soundfile.write(path, np.convolve(samples, [0.3, 0.3, 0.2, 0.1])[: len(samples)], rate, subtype="PCM_16")
    settings = replace(tone_corpus.SETTINGS, ivectors=IvectorSettings(1, num_gaussians=2))
    data = prepare(tmp_path / "corpus", tmp_path / "data", settings).data
    found = {data.speakers(s)[n]: float(rows[0, 0]) for s in data.splits for n, rows in data.ivectors(s).items()}
    apart = abs(found["train0"] - found["train1"])
    assert apart > 0.5
    assert abs(found["dev0"] - found["train0"]) < 0.5 * apart
    assert abs(found["dev1"] - found["train1"]) < 0.5 * apart


@pytest.mark.parametrize(
    ("kinds", "ivectors", "dim"),
    [
        (["plain"], False, 23),
        (["adapted"], True, 45),
        (["plain", "adapted"], False, 63),
        (["plain", "adapted"], True, 68),
    ],
)
def test_inputs_side_by_side(prepared: Path, kinds: list[str], ivectors: bool, dim: int) -> None:
    data = open_prepared(prepared)
    inputs, senones = data.inputs("train", kinds, ivectors=ivectors), data.alignments("train")
    assert inputs.dim == dim
    name = inputs.ids[3]
    frames = inputs.lengths[3]
    whole = [data.features("train", kind)[name] for kind in kinds]
    whole += [np.repeat(data.ivectors("train")[name], frames, axis=0)] if ivectors else []
    assert np.array_equal(inputs[name], np.concatenate(whole, axis=1))
    assert np.array_equal(inputs.gather(np.array([3]), np.arange(frames)[None])[0], inputs[name])
    assert FrameMinibatches(inputs, senones, 8, left=2, right=1).load(0, 0).inputs.shape == (8, 4 * dim)
    assert ChunkMinibatches(inputs, senones, 4, length=7).load(0, 0).inputs.shape == (4, 7, dim)
    batch = UtteranceMinibatches(inputs, data.labels("train").__getitem__, 3, seed=1).load(0, 0)
    assert batch.inputs.shape[2] == dim


def test_inputs_that_do_not_belong_together(prepared: Path, tmp_path: Path) -> None:
    data = open_prepared(prepared)
    with pytest.raises(DataError, match="its utterances or their lengths are not those of"):
        CombinedInputs([data.features("train"), data.features("dev", "adapted")])
    with pytest.raises(DataError, match="its utterances are not those of"):
        CombinedInputs([data.features("train")], data.ivectors("dev"))
    with pytest.raises(SettingsError, match="at least one kind"):
        data.inputs("train", [])
    empty = write_store(tmp_path / "empty", [("a", np.zeros((0, 3)))], dim=3)
    vector = write_store(tmp_path / "vector", [("a", np.ones((1, 2)))], dim=2)
    assert CombinedInputs([empty], vector)["a"].shape == (0, 5)


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


def recognisable(data: PreparedData, name: str) -> set[str]:
    """List the words on a graph's arcs."""
    import kaldifst

    graph = data.graph(name)
    labels = {arc.olabel for state in kaldifst.StateIterator(graph) for arc in kaldifst.ArcIterator(graph, state)}
    return {data.lexicon.words[label - 1] for label in labels if label}


@pytest.fixture
def open_corpus(tmp_path: Path) -> Path:
    """A corpus where a word, AS, is said in dev only."""
    corpus = tone_corpus.make(tmp_path / "corpus", train=12, dev=4)
    text = corpus / "train" / "text"
    text.write_text(text.read_text().replace("AS", "MA"))
    assert "AS" in (corpus / "dev" / "text").read_text()
    return corpus


def test_given_words_are_recognised_and_others_only_aligned(open_corpus: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "data", {"SEE", "MA", "ME"}
    outcome = prepare(open_corpus, out, tone_corpus.SETTINGS)
    assert recognisable(outcome.data, "bigram") == recognisable(outcome.data, "flat") == {*said, "AS"}
    assert outcome.summary["vocabulary"]["just_the_transcripts"]
    assert outcome.summary["vocabulary"]["unrecognisable"]["dev"]["words"] == []
    train = replace(tone_corpus.SETTINGS, lexicon=LexiconSettings(vocabulary="train"))
    outcome = prepare(open_corpus, out, train)
    assert outcome.done == ["graph", "summary"]
    assert recognisable(outcome.data, "bigram") == recognisable(outcome.data, "flat") == said
    assert outcome.data.vocabulary == sorted(said)
    assert outcome.summary["splits"]["dev"]["aligned"] == 4
    found = outcome.summary["vocabulary"]
    assert not found["just_the_transcripts"]
    assert found["unrecognisable"]["dev"]["words"] == ["AS"]
    tokens = (open_corpus / "dev" / "text").read_text().split().count("AS")
    assert found["unrecognisable"]["dev"]["tokens"] == tokens
    assert any(line.startswith(f"  dev: 1 words ({tokens} of 12 said)") for line in summary_lines(outcome.summary))


def test_a_dictionary_pronounces_but_does_not_reveal_held_out_words(open_corpus: Path, tmp_path: Path) -> None:
    (open_corpus / "lexicon.txt").rename(tmp_path / "dictionary.txt")
    settings = replace(tone_corpus.SETTINGS, lexicon=LexiconSettings(dictionary=tmp_path / "dictionary.txt"))
    outcome = prepare(open_corpus, tmp_path / "data", settings)
    assert "AS" in outcome.data.lexicon
    assert recognisable(outcome.data, "bigram") == {"SEE", "MA", "ME"}


def test_a_given_language_model_is_limited() -> None:
    model = restrict_vocabulary(flat(["A", "B", "C"]), ["A", "C"])
    assert model.vocabulary == ["A", "C"]
    assert (END,) in model.logprobs


def test_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--adapt needs an HMM-GMM"):
        PrepareSettings(hmm=SETTINGS.hmm, alignments=tmp_path)
    with pytest.raises(SettingsError, match="unknown vocabulary 'trian'; did you mean 'train'"):
        LexiconSettings(vocabulary="trian")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="sizes must be at least 1, not 0"):
        IvectorSettings(0)
    with pytest.raises(SettingsError, match="unknown unit 'speker'; did you mean 'speaker'"):
        IvectorSettings(per="speker")  # type: ignore[arg-type]
