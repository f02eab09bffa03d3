"""From a trained run to words: near or far from its data, in one process or two, with features as its own were."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import tomli_w

import decodable_run
import tone_corpus
from roundelay.errors import DataError
from roundelay.models import build_model
from roundelay.runs.run_folder import RunFolder
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import Weights
from roundelay.speech.decoding.decoding_data import open_split
from roundelay.speech.decoding.grammar import build_grammar, find_grammar
from roundelay.speech.decoding.network_scorer import load_network
from roundelay.speech.decoding.split_decoding import DecodeSettings, decode_run
from roundelay.speech.decoding.weight_tuning import neighbours, read_tuned
from roundelay.speech.features.mel_features import FeatureSettings
from roundelay.speech.preparation.pipeline import IvectorSettings, prepare
from roundelay.speech.preparation.prepared_data import PreparedData, open_prepared

FIXED = DecodeSettings(scale=0.3, penalty=0.0, prior=0.5)


@pytest.fixture(scope="module")
def place() -> Path:
    return decodable_run.place()


@pytest.fixture
def data(place: Path) -> PreparedData:
    return open_prepared(place / "data")


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil, with its data as far away as they were."""
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("decode"))
    (tmp_path / "data").symlink_to(place / "data")
    return tmp_path / "run"


def test_it_recognises_what_is_said(run: Path) -> None:
    found = decode_run(run, None, "test", language="flat", settings=FIXED)
    assert found.report["wer"] == 0
    assert found.folder == run / "decode" / "data-test-flat"
    written = json.loads((found.folder / "wer.json").read_text())
    assert written == found.report
    assert {"wer", "interval", "words", "errors", "insertions", "deletions", "substitutions", "split", "language",
            "scale", "penalty", "prior", "beam", "real_time_factor"} <= written.keys()  # fmt: skip
    rows = [json.loads(line) for line in (found.folder / "utterances.jsonl").read_text().splitlines()]
    assert rows[0].keys() == {"utterance", "reference", "hypothesis", "errors", "words"}
    assert all(row["reference"] == row["hypothesis"] for row in rows)
    texts = dict(line.split(maxsplit=1) for line in (found.folder / "hyp.txt").read_text().splitlines())
    assert texts == {row["utterance"]: row["hypothesis"] for row in rows}


def test_times_are_those_of_the_alignment(run: Path, data: PreparedData) -> None:
    found = decode_run(run, None, "test", language="bigram", settings=FIXED)
    lines = [line.split() for line in (found.folder / "hyp.ctm").read_text().splitlines()]
    for name, words in data.transcripts("test").items():
        mine = [(float(begin), float(length), word) for u, _, begin, length, word in lines if u == name]
        assert [word for _, _, word in mine] == list(words)
        aligned = data.words("test")[name]
        for (begin, length, _), (_, first, end) in zip(mine, aligned, strict=True):
            assert begin == pytest.approx(first / 100, abs=0.06)
            assert begin + length == pytest.approx(end / 100, abs=0.06)


def test_a_moved_run_decodes_without_its_data(place: Path, run: Path, tmp_path: Path) -> None:
    here = decode_run(run, place / "corpus", "test", language="bigram")
    shutil.copytree(run, tmp_path / "elsewhere" / "run")
    shutil.copytree(place / "corpus" / "test", tmp_path / "elsewhere" / "heard")
    moved = tmp_path / "elsewhere" / "run"
    assert not Bundle.open(moved).data.exists()
    there = decode_run(moved, tmp_path / "elsewhere" / "heard", "test", language="bigram")
    assert there.folder == moved / "decode" / "heard-bigram"
    assert there.report["split"] == "heard", "a folder that is one split, whatever is asked for"
    assert [item.words for item in there.utterances] == [item.words for item in here.utterances]
    assert there.report["tuned_on"] == "data-dev", "chosen before the run was moved"
    for path in (moved / "acoustic").rglob("*.json"):
        assert str(place) not in path.read_text()


def test_other_data_of_the_same_name_do_not_overwrite_results(place: Path, run: Path, tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two", "one"):
        heard = tmp_path / name / "heard"
        if not heard.exists():
            shutil.copytree(place / "corpus" / "test", heard)
        folders.append(decode_run(run, heard, "test", language="flat").folder.name)
    assert folders == ["heard-flat", "heard-flat-2", "heard-flat"]


def test_how_often_what_was_said_was_decoded(place: Path, run: Path, tmp_path: Path) -> None:
    counts = []
    for where, corpus in (("one", "test"), ("two", "dev"), ("three", "test")):
        heard = tmp_path / where / "heard"
        shutil.copytree(place / "corpus" / corpus, heard)
        counts.append(decode_run(run, heard, "test", language="flat", settings=FIXED).report["decoded"])
    assert counts == [1, 1, 2], "a copy of a test set is the same test set; another of the same name is not"


def test_a_moved_run_without_data_says_so(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "run", tmp_path / "run")
    with pytest.raises(DataError, match="its training data are not at .*; give --data"):
        decode_run(tmp_path / "run", None, "test", language="flat")


def test_a_corpus_folder_gives_the_features_of_the_preparation(place: Path, run: Path, data: PreparedData) -> None:
    bundle = Bundle.open(run)
    with open_split(bundle, place / "corpus", "test") as material:
        for name in material.utterances:
            np.testing.assert_allclose(material.inputs[name], data.inputs("test")[name], atol=1e-5)


@pytest.mark.slow
def test_adapted_features_and_vectors_are_made_as_the_preparation_made_them(tmp_path: Path) -> None:
    adapted = replace(decodable_run.SETTINGS.hmm, adapt=True)
    data = decodable_run.make_data(tmp_path, hmm=adapted, ivectors=IvectorSettings(4, num_gaussians=4))
    run = decodable_run.make_run(data, tmp_path / "run", kinds=["plain", "adapted"], ivectors=True)
    shutil.move(data.folder, tmp_path / "away")
    data = open_prepared(tmp_path / "away")
    with open_split(Bundle.open(run), tmp_path / "corpus", "test") as material:
        for name in material.utterances:
            expected = data.inputs("test", ["plain", "adapted"], ivectors=True)[name]
            np.testing.assert_allclose(material.inputs[name], expected, atol=2e-3)
    assert decode_run(run, tmp_path / "corpus", "test", language="flat", settings=FIXED).report["wer"] == 0


def test_ctc_is_decoded_by_its_own_graph(place: Path, data: PreparedData, tmp_path: Path) -> None:
    run = decodable_run.make_run(data, tmp_path / "run", objective="ctc")
    found = decode_run(run, None, "test", language="flat")
    assert found.report["wer"] == 0
    for item in found.utterances:
        for (begin, end), (_, first, last) in zip(item.times, data.words("test")[item.utterance], strict=True):
            assert begin == pytest.approx(first / 100, abs=0.08)
            assert first / 100 < end < last / 100 + 0.08, "a peak ends before its phone does"


@pytest.mark.slow
def test_processes_find_the_same(run: Path) -> None:
    one = decode_run(run, None, "test", language="flat", settings=FIXED)
    two = decode_run(run, None, "test", language="flat", settings=replace(FIXED, jobs=2))
    assert [(i.words, i.times) for i in one.utterances] == [(i.words, i.times) for i in two.utterances]
    assert two.report["decoded"] == 2, "it is counted how often a split was looked at"


def test_weights_are_chosen_on_dev_once(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = decode_run(run, None, "test", language="flat")
    assert first.report["tuned_on"] == "data-dev"
    assert "tuned on data-dev" in caplog.text
    grammar = find_grammar(Bundle.open(run), "flat")
    assert read_tuned(run, grammar) is not None
    caplog.clear()
    again = decode_run(run, None, "test", language="flat")
    assert "tuned on" not in caplog.text
    assert again.report["scale"] == first.report["scale"]
    (run / "model.safetensors").touch()
    assert read_tuned(run, grammar) is not None, "the same model"
    tensors = bytearray((run / "model.safetensors").read_bytes())
    tensors[-1] ^= 1
    (run / "model.safetensors").write_bytes(tensors)
    assert read_tuned(run, grammar) is None, "another model has other weights"


def test_the_walk_goes_to_fewer_errors(run: Path) -> None:
    decode_run(run, None, "test", language="flat")
    said = json.loads((run / "decode" / "tuned-flat.json").read_text())
    least = min(point["errors"] for point in said["tried"])
    chosen = [p for p in said["tried"] if {k: p[k] for k in ("scale", "penalty", "prior")} == said["weights"]]
    assert [point["errors"] for point in chosen] == [least]
    tried = [Weights(p["scale"], p["penalty"], p["prior"]) for p in said["tried"]]
    assert set(neighbours(Weights(**said["weights"]))) <= set(tried)


def test_weights_can_be_taken_from_another_run(place: Path, run: Path) -> None:
    with pytest.raises(DataError, match="no weights tuned for flat; decode with it first"):
        decode_run(run, None, "test", language="flat", settings=DecodeSettings(weights_of=run))
    decode_run(run, None, "test", language="flat")
    shutil.copytree(run, run.parent / "twin", ignore=shutil.ignore_patterns("decode"))
    found = decode_run(run.parent / "twin", None, "test", language="flat", settings=DecodeSettings(weights_of=run))
    assert found.report["tuned_on"] == "data-dev"
    assert not list((run.parent / "twin" / "decode").glob("tuned-*"))


def test_without_dev_usual_weights_are_taken_and_said(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(place / "run", tmp_path / "run", ignore=shutil.ignore_patterns("decode"))
    found = decode_run(tmp_path / "run", place / "corpus" / "test", "test", language="flat")
    assert found.report["tuned_on"] is None
    assert "no dev split to tune weights on" in caplog.text


def test_what_was_trained_on_is_not_tuned_on(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(settings.replace("[task]", '[task]\ntrain = ["train", "dev"]'))
    assert decode_run(run, None, "dev", language="flat").report["tuned_on"] is None
    assert "trained on dev, so its error rate is too optimistic" in caplog.text
    assert "so weights are not tuned on it" in caplog.text


def test_alternatives_are_different_and_ordered(run: Path) -> None:
    found = decode_run(run, None, "test", language="flat", settings=replace(FIXED, scale=0.05, nbest=3))
    rows = [json.loads(line) for line in (found.folder / "nbest.jsonl").read_text().splitlines()]
    for row, item in zip(rows, found.utterances, strict=True):
        assert row["best"][0]["words"] == " ".join(item.words)
        assert len({best["words"] for best in row["best"]}) == len(row["best"]) == 3
        assert [best["cost"] for best in row["best"]] == sorted(best["cost"] for best in row["best"])


def test_another_lexicon_limits_what_is_recognised(run: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("SIM S IY M\nMA M AA\n")
    found = decode_run(run, None, "test", settings=replace(FIXED, lexicon=tmp_path / "two.txt"))
    assert found.report["language"] == "two-flat"
    assert {word for item in found.utterances for word in item.words} <= {"SIM", "MA"}
    assert all(len(item.times) == len(item.words) for item in found.utterances)


def test_another_language_model_counts(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=3\n\n\\1-grams:\n-99 <s>\n-0.3 </s>\n-0.3 MA\n\n\\end\\\n")
    found = decode_run(run, None, "test", settings=replace(FIXED, arpa=tmp_path / "lm.arpa"))
    assert {word for item in found.utterances for word in item.words} == {"MA"}


def test_words_that_are_said_and_cannot_be_recognised_are_named(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "one.txt").write_text("MA M AA\n")
    decode_run(run, None, "test", settings=replace(FIXED, lexicon=tmp_path / "one.txt"))
    assert "words are not in the lexicon, so they count as errors: AS" in caplog.text
    caplog.clear()
    decode_run(run, None, "test", language="flat", settings=FIXED)
    assert "not in the lexicon" not in caplog.text
    with pytest.raises(DataError, match="no weights tuned for one-flat"):
        decode_run(run, None, "test", settings=DecodeSettings(weights_of=run, lexicon=tmp_path / "one.txt"))


def test_a_lexicon_with_a_missing_phone_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("MA M AA\nZOO Z UW\n")
    with pytest.raises(DataError, match=r"'ZOO' has the phone 'Z', .* not trained on; write it with AA IY M S"):
        build_grammar(Bundle.open(run), tmp_path / "graph", lexicon=tmp_path / "lexicon.txt")


def test_data_with_other_features_are_refused(place: Path, run: Path, tmp_path: Path) -> None:
    other = replace(decodable_run.SETTINGS, features=FeatureSettings(num_bins=20), normalise="utterance")
    prepare(place / "corpus", tmp_path / "other", other)
    with pytest.raises(DataError, match="num_bins 20 instead of 23, normalise utterance instead of speaker; give the"):
        decode_run(run, tmp_path / "other", "test", language="flat", settings=FIXED)


def test_a_model_of_other_features_is_refused(place: Path, run: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"inputs": 30}))
    with pytest.raises(DataError, match=r"hidden.0.weight is \[32, 115\], but 30 features per frame"):
        load_network(run, Bundle.open(run))


def test_a_graph_that_does_not_fit_is_refused(place: Path, run: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"outputs": 17}))
    with pytest.raises(DataError, match="the model has 18 outputs and the graphs in .* are for 17"):
        decode_run(run, None, "test", language="flat", settings=FIXED)


@pytest.mark.parametrize("model", [{"name": "lstm", "preset": "tiny", "fold": 3}, {"name": "tdnn", "preset": "tiny"}])
def test_outputs_are_counted_for_each_frame(run: Path, model: dict[str, Any]) -> None:
    (run / "settings.toml").write_text(tomli_w.dumps({"task": {"name": "acoustic", "model": model}}))
    RunFolder(run).save_model(build_model(model, Bundle.open(run).inputs, 20), {})
    with pytest.raises(DataError, match="the model has 20 outputs and the graphs in .* are for 18"):
        load_network(run, Bundle.open(run))


def test_a_graph_of_another_run_is_refused(run: Path) -> None:
    path = run / "acoustic" / "graphs" / "flat.fst"
    path.write_bytes(bytes(path.stat().st_size))  # as long as before, so that the size does not tell
    with pytest.raises(DataError, match=r"flat.fst: changed since the run was trained; copy the run again"):
        decode_run(run, None, "test", language="flat", settings=FIXED)


def test_another_model_than_the_settings_name_is_refused(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(settings.replace("dnn", "tdnn"))
    with pytest.raises(DataError, match="its tensors are not those of task.model"):
        decode_run(run, None, "test", language="flat", settings=FIXED)
    (run / "model.safetensors").unlink()
    with pytest.raises(DataError, match="model.safetensors: no such file; the run has no trained model yet"):
        decode_run(run, None, "test", language="flat")
    assert not caplog.text, "before anything else is tried"


@pytest.fixture
def heard(place: Path, tmp_path: Path) -> Path:
    shutil.copytree(place / "corpus" / "test", tmp_path / "heard")
    return tmp_path / "heard"


def test_audio_at_another_rate_is_named(run: Path, heard: Path) -> None:
    path = next(heard.glob("*.wav"))
    samples, rate = soundfile.read(path)
    soundfile.write(path, np.repeat(samples, 2), 2 * rate)
    assert decode_run(run, heard, "test", language="flat", settings=FIXED).wer.words == 11, "more will do"
    soundfile.write(path, samples[::2], rate // 2)
    with pytest.raises(DataError, match=r"8000 Hz, .* trained on 16000 Hz; .*--resample"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)
    decode_run(run, heard, "test", language="flat", settings=replace(FIXED, resample=True))


def test_an_empty_utterance_is_named(run: Path, heard: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = heard / "test0-u0.wav"
    soundfile.write(path, np.zeros(100), tone_corpus.RATE)
    found = decode_run(run, heard, "test", language="flat", settings=FIXED)
    assert "utterance test0-u0: too short for a frame, so its words count as deleted" in caplog.text
    assert found.report["deletions"] == 2, "its words count"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"empty audio file \(0 bytes\)"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)


def write_ark(folder: Path, features: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write feats.scp and the archive that it points into, as Kaldi does."""
    content, rows = b"", []
    for name, matrix in features.items():
        content += f"{name} ".encode()
        rows.append(f"{name} {folder / 'feats.ark'}:{len(content)}\n")
        content += b"\0BFM " + struct.pack("<bibi", 4, len(matrix), 4, matrix.shape[1])
        content += np.asarray(matrix, "<f4").tobytes()
    (folder / "feats.ark").write_bytes(content)
    (folder / "feats.scp").write_text("".join(rows))


def test_given_features_are_taken_or_missed(place: Path, run: Path, data: PreparedData, heard: Path) -> None:
    description = run / "acoustic" / "bundle.json"
    said = json.loads(description.read_text())
    description.write_text(json.dumps(said | {"given_features": True, "normalise": "none"}))
    with pytest.raises(DataError, match=r"trained on given features \(feats.scp\), which cannot be made from audio"):
        decode_run(run, heard, "test", language="flat", settings=FIXED)
    write_ark(heard, data.features("test"))
    found = decode_run(run, heard, "test", language="flat", settings=FIXED)
    assert found.report["wer"] == 0


def test_an_unknown_split_or_language_is_named(place: Path, run: Path) -> None:
    with pytest.raises(DataError, match="unknown split 'tset'; did you mean 'test'"):
        decode_run(run, None, "tset", language="flat", settings=FIXED)
    with pytest.raises(DataError, match="unknown split 'tset'; did you mean 'test'"):
        decode_run(run, place / "corpus", "tset", language="flat", settings=FIXED)
    with pytest.raises(DataError, match="unknown language 'trigram'"):
        decode_run(run, None, "test", language="trigram", settings=FIXED)
