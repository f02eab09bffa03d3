"""Preparation as a whole: resumed, redone from what changed, refused with one line."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tone_corpus
from roundelay.corpora.data_directory import read_split
from roundelay.errors import DataError, SettingsError
from roundelay.speech.features.array_store import shard_name
from roundelay.speech.features.extraction import Extraction
from roundelay.speech.features.mel_features import FeatureSettings, extract
from roundelay.speech.language.lexicon import SILENCE
from roundelay.speech.preparation import cached_stages
from roundelay.speech.preparation.language_stage import LanguageSettings
from roundelay.speech.preparation.pipeline import LexiconSettings, PrepareSettings, open_prepared, prepare

ALL = ["corpus", "features", "lexicon", "hmm", "alignment", "graph", "summary"]
SETTINGS = tone_corpus.SETTINGS


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tone_corpus.make(tmp_path_factory.mktemp("tones") / "corpus")


@pytest.fixture(scope="module")
def prepared(corpus: Path) -> Path:
    out = corpus.parent / "data"
    assert prepare(corpus, out, SETTINGS).done == ALL
    return out


@pytest.fixture
def data(prepared: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    subprocess.run(["cp", "-a", prepared, tmp_path / "data"], check=True)
    return tmp_path / "data"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A corpus that a test may spoil."""
    return tone_corpus.make(tmp_path / "corpus", train=6, dev=2)


def test_everything_is_there(corpus: Path, prepared: Path) -> None:
    data = open_prepared(prepared)
    assert data.splits == ["train", "dev"]
    assert data.train_splits == ["train"]
    assert len(data.utterances("train")) == len(data.features("train")) == 12
    assert data.lexicon.phones == [SILENCE, "AA", "IY", "M", "S"]
    for split in data.splits:
        for name, senones in data.alignments(split).items():
            assert len(senones) == len(data.features(split)[name])
            assert senones.max() < data.num_senones
    assert data.graph_names == ["bigram", "flat"]
    assert data.graph("flat").num_states > 10
    priors = data.priors()
    assert priors.shape == (data.num_senones,)
    assert priors.sum() == pytest.approx(1)
    assert data.labels("dev").keys() == data.transcripts("dev").keys()
    with pytest.raises(DataError, match="unknown split 'tain'; did you mean 'train'"):
        data.features("tain")
    with pytest.raises(DataError, match="unknown graph 'bigam'; did you mean 'bigram'"):
        data.graph("bigam")


def test_alignments_find_the_tones(prepared: Path) -> None:
    """The phones follow from the samples' loudest pitches, frame by frame."""
    data = open_prepared(prepared)
    right, total = 0, 0
    for utterance in data.utterances("dev"):
        samples, _ = soundfile.read(utterance.audio)
        for phone, begin, end in data.phones("dev")[utterance.id].tolist():
            for frame in range(begin, end):
                window = samples[frame * 160 : frame * 160 + 400]
                power = np.abs(np.fft.rfft(window * np.hanning(400))) ** 2
                pitch = np.argmax(power) * 40
                near = min(tone_corpus.CHORDS, key=lambda name: min(abs(pitch - p) for p in tone_corpus.CHORDS[name]))
                true = near if power.max() > 10 else SILENCE
                right += true == data.lexicon.phones[phone]
                total += 1
    assert right / total > 0.9


def test_features_are_normalised_by_speaker(prepared: Path) -> None:
    data = open_prepared(prepared)
    speakers = data.speakers("train")
    features = data.features("train")
    own = np.concatenate([features[name] for name, speaker in speakers.items() if speaker == "train0"])
    np.testing.assert_allclose(own.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(own.std(0), 1, atol=1e-3)


def test_a_second_preparation_has_nothing_to_do(corpus: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()}
    outcome = prepare(corpus, prepared, SETTINGS)
    assert outcome.done == []
    assert outcome.summary["splits"]["train"]["aligned"] == 12
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("settings", "done"),
    [
        (replace(SETTINGS, language=LanguageSettings(order=3, ctc=True)), ["graph", "summary"]),
        (replace(SETTINGS, hmm=replace(SETTINGS.hmm, num_senones=18)), ["hmm", "alignment", "graph", "summary"]),
        (replace(SETTINGS, normalise="utterance"), ["features", "hmm", "alignment", "graph", "summary"]),
    ],
)
def test_other_settings_redo_what_differs(corpus: Path, data: Path, settings: PrepareSettings, done: list[str]) -> None:
    before = open_prepared(data).digest
    outcome = prepare(corpus, data, settings)
    assert outcome.done == done
    assert outcome.data.digest != before


def test_a_missing_or_short_file_is_made_again(corpus: Path, data: Path) -> None:
    shard = data / "features" / "train" / shard_name(0)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    (data / "graphs" / "flat.fst").unlink()
    assert prepare(corpus, data, SETTINGS).done == ["features", "graph"]
    assert shard.read_bytes() == whole


def test_changed_held_out_words_redo_the_alignment_only(own: Path, tmp_path: Path) -> None:
    prepare(own, tmp_path / "data", SETTINGS)
    text = own / "dev" / "text"
    text.write_text(text.read_text().replace("SEE", "AS"))
    assert prepare(own, tmp_path / "data", SETTINGS).done == ["corpus", "alignment", "summary"]
    audio = next((own / "dev").glob("*.wav"))
    os.utime(audio, ns=(1, 1))
    assert "features" in prepare(own, tmp_path / "data", SETTINGS).done


@pytest.mark.slow
@pytest.mark.parametrize("after", ["features", "hmm", "alignment"])
def test_an_interrupted_preparation_resumes(corpus: Path, prepared: Path, tmp_path: Path, after: str) -> None:
    """Kill the process as soon as a stage is under way, look that nothing is taken for whole, and go on."""
    out = tmp_path / "data"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tone_corpus\n"
        "from roundelay.speech.preparation.pipeline import prepare\n"
        "def tell(stage, done, total): print(stage, flush=True)\n"
        "prepare(sys.argv[2], sys.argv[3], tone_corpus.SETTINGS, progress=tell)"
    )
    command = [sys.executable, "-c", code, str(Path(tone_corpus.__file__).parent), str(corpus), str(out)]
    names = {"hmm": ("monophones", "triphones")}.get(after, (after,))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() in names:
                process.send_signal(signal.SIGKILL)
                break
    with pytest.raises(DataError, match="no prepared data, or incomplete"):
        open_prepared(out)
    done = prepare(corpus, out, SETTINGS).done
    assert done == ALL[ALL.index(after) :] or after == "features"
    assert done[-1] == "summary"
    for path in sorted(prepared.rglob("*")):
        kept = path.is_file() and path.suffix in (".raw", ".fst", ".arpa", ".txt", ".safetensors")
        assert not kept or path.read_bytes() == (out / path.relative_to(prepared)).read_bytes(), path


def test_two_at_once_are_refused(corpus: Path, data: Path) -> None:
    with cached_stages.lock_folder(data), pytest.raises(DataError, match="in use by another preparation"):
        prepare(corpus, data, SETTINGS)
    assert prepare(corpus, data, SETTINGS).done == []


def test_a_folder_of_something_else_is_refused(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(DataError, match="not empty, and not prepared data"):
        prepare(corpus, tmp_path, SETTINGS)
    with pytest.raises(DataError, match="a file; --out must be a folder"):
        prepare(corpus, tmp_path / "thesis.tex", SETTINGS)


def test_a_word_without_pronunciation_is_named(own: Path, tmp_path: Path) -> None:
    text = own / "dev" / "text"
    text.write_text(text.read_text().replace("\n", " ZEBRA\n", 1))
    with pytest.raises(DataError, match=r"lexicon.txt: no pronunciation of ZEBRA; add them"):
        prepare(own, tmp_path / "data", SETTINGS)
    (tmp_path / "dict").write_text("ZEBRA(2)  Z IY1 B R AH0\n")
    more = replace(SETTINGS, hmm=replace(SETTINGS.hmm, num_senones=40, num_gaussians=60))
    looked_up = replace(more, lexicon=LexiconSettings(dictionary=tmp_path / "dict"))
    assert prepare(own, tmp_path / "data", looked_up).data.lexicon["ZEBRA"] == [("Z", "IY", "B", "R", "AH")]
    guessed = replace(more, lexicon=LexiconSettings(unknown="grapheme"))
    outcome = prepare(own, tmp_path / "data", guessed)
    assert outcome.summary["lexicon"]["unknown"] == ["ZEBRA"]
    assert outcome.data.lexicon.unknown == ("ZEBRA",)


def test_an_utterance_too_short_for_its_states_is_listed(own: Path, tmp_path: Path) -> None:
    for seconds, name in ((0.1, "train1-u01"), (0.01, "train0-u02")):
        soundfile.write(own / "train" / f"{name}.wav", 0.1 * np.ones(int(seconds * 16000)), 16000)
    outcome = prepare(own, tmp_path / "data", SETTINGS)
    failed = outcome.summary["splits"]["train"]["failed"]
    assert failed.keys() == {"train1-u01", "train0-u02"}
    assert failed["train0-u02"] == "no frames: shorter than one"
    assert "frames" in failed["train1-u01"]
    assert "train1-u01" not in outcome.data.alignments("train")


def test_bad_audio_is_named_with_its_utterance(own: Path, tmp_path: Path) -> None:
    (own / "train" / "train0-u00.wav").write_bytes(b"")
    with pytest.raises(DataError, match=r"train0-u00.wav: empty audio file .* \(utterance train0-u00\)"):
        prepare(own, tmp_path / "data", SETTINGS)
    with pytest.raises(DataError, match="incomplete"):
        open_prepared(tmp_path / "data")


def test_a_full_disk_is_one_line(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_empty_folder = Extraction.run.__globals__["make_empty_folder"]

    def full(folder: Path) -> Path:
        make_empty_folder(folder)
        (folder / shard_name(0)).symlink_to("/dev/full")
        return folder

    monkeypatch.setitem(Extraction.run.__globals__, "make_empty_folder", full)
    with pytest.raises(DataError, match=r"features/train/shard-00000.raw: cannot be written: No space left on device"):
        prepare(own, tmp_path / "data", SETTINGS)
    monkeypatch.undo()
    with pytest.raises(DataError, match="incomplete"):
        open_prepared(tmp_path / "data")
    assert prepare(own, tmp_path / "data", SETTINGS).done == [s for s in ALL if s != "corpus"]


def test_speeds_make_copies_of_the_training_part(own: Path, tmp_path: Path) -> None:
    outcome = prepare(own, tmp_path / "data", replace(SETTINGS, speeds=(0.9, 1.1), normalise="none"))
    data = outcome.data
    assert len(data.features("train")) == 18
    assert len(data.features("dev")) == 2
    ratio = len(data.features("train")["sp0.9-train0-u00"]) / len(data.features("train")["train0-u00"])
    assert ratio == pytest.approx(1 / 0.9, rel=0.03)
    assert data.transcripts("train")["sp1.1-train0-u00"] == data.transcripts("train")["train0-u00"]
    assert data.speakers("train")["sp1.1-train0-u00"] == "sp1.1-train0"
    assert "sp0.9-train0-u00" in data.alignments("train")
    samples, _ = soundfile.read(own / "train" / "train0-u00.wav", dtype="float32")
    np.testing.assert_allclose(data.features("train")["train0-u00"], extract(samples, SETTINGS.features), atol=1e-5)
    with pytest.raises(SettingsError, match="speeds must be different"):
        PrepareSettings(speeds=(1.0,))


def test_noisy_copies_take_the_alignment_of_their_originals(own: Path, tmp_path: Path) -> None:
    train = own / "train"
    samples, rate = soundfile.read(train / "train0-u00.wav")
    noisy = samples + 0.3 * np.random.default_rng(0).standard_normal(len(samples))
    soundfile.write(train / "train0-u00-noisy.wav", noisy.clip(-1, 1), rate, subtype="PCM_16")
    words = next(line for line in (train / "text").read_text().splitlines() if line.startswith("train0-u00 "))
    for name, line in (
        ("wav.scp", "train0-u00-noisy train0-u00-noisy.wav"), ("utt2spk", "train0-u00-noisy train0"),
        ("text", words.replace("train0-u00", "train0-u00-noisy")),
    ):  # fmt: skip
        (train / name).write_text((train / name).read_text() + line + "\n")
    (train / "utt2clean").write_text("train0-u00-noisy train0-u00\n")
    data = prepare(own, tmp_path / "data", SETTINGS).data
    assert np.array_equal(data.alignments("train")["train0-u00-noisy"], data.alignments("train")["train0-u00"])


def test_brought_states_and_what_is_wrong_with_them(corpus: Path, prepared: Path, tmp_path: Path) -> None:
    given = open_prepared(prepared)
    rows = []
    for split in given.splits:
        for name, phones in given.phones(split).items():
            runs = []
            for phone, begin, end in phones.tolist():
                cuts = [begin, begin + 1, end - 1, end]
                label = given.lexicon.phones[phone].lower()
                runs += [f"{label}_s{k + 2}_1:{cuts[k + 1] - cuts[k]}" for k in range(3)]
            rows.append(f"{name} {' '.join(runs)}")
    source = tmp_path / "states.txt"
    source.write_text("\n".join([rows[0].replace("_s3_1:", "_s3_1:1"), *rows[2:]]) + "\n")
    outcome = prepare(corpus, tmp_path / "data", replace(SETTINGS, alignments=source))
    failed = outcome.summary["splits"]["train"]["failed"]
    names = [row.split()[0] for row in rows[:2]]
    assert failed.keys() == set(names)
    assert failed[names[1]] == "not in states.txt"
    assert "frames are aligned, but" in failed[names[0]]
    source.write_text("\n".join(rows).replace("iy_s", "xx_s") + "\n")
    with pytest.raises(DataError, match=r"states.txt: utterance \S+ has a phone that the lexicon lacks: 'xx'"):
        prepare(corpus, tmp_path / "data", replace(SETTINGS, alignments=source))


def test_kaldi_features_are_taken(own: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, normalise="none", given_features=True)
    for split in ("train", "dev"):
        rows = []
        with (own / split / "feats.ark").open("wb") as file:
            for utterance in read_split(own / split):
                features = extract(soundfile.read(utterance.audio, dtype="float32")[0], SETTINGS.features) + 100
                file.write(f"{utterance.id} ".encode())
                rows.append(f"{utterance.id} feats.ark:{file.tell()}\n")
                file.write(b"\0BFM \4" + struct.pack("<i", len(features)) + b"\4" + struct.pack("<i", 23))
                file.write(features.tobytes())
        (own / split / "feats.scp").write_text("".join(rows))
    data = prepare(own, tmp_path / "data", settings).data
    for utterance in data.utterances("train"):
        samples, _ = soundfile.read(utterance.audio, dtype="float32")
        assert np.array_equal(data.features("train")[utterance.id], extract(samples, SETTINGS.features) + 100)
    assert prepare(own, tmp_path / "data", settings).done == []
    with pytest.raises(DataError, match=r"feats.ark: utterance \S+ has 23 features per frame, not 40; check"):
        prepare(own, tmp_path / "data", replace(settings, features=FeatureSettings()))
    scp = own / "train" / "feats.scp"
    scp.write_text("".join(scp.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(DataError, match=r"train: feats.scp has no features of utterance train0-u00"):
        prepare(own, tmp_path / "data", settings)
    with pytest.raises(SettingsError, match="speeds need audio"):
        PrepareSettings(speeds=(0.9,), given_features=True)


def test_few_hours_train_the_hmm_and_all_is_aligned(corpus: Path, tmp_path: Path) -> None:
    frames = sum(prepare(corpus, tmp_path / "data", SETTINGS).data.features("train").lengths)
    outcome = prepare(corpus, tmp_path / "data", replace(SETTINGS, hmm_hours=0.6 * frames / 360_000))
    assert outcome.done == ["hmm", "alignment", "graph", "summary"]
    assert outcome.summary["splits"]["train"]["aligned"] == 12
    assert outcome.data.description["settings"]["hmm_hours"] < 0.01


def test_bad_settings(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="jobs must be at least 1, not 0"):
        prepare(corpus, tmp_path / "data", SETTINGS, jobs=0)
    with pytest.raises(SettingsError, match="unknown scope of normalisation 'speker'; did you mean 'speaker'"):
        PrepareSettings(normalise="speker")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no such folder"):
        prepare(tmp_path / "nowhere", tmp_path / "data", SETTINGS)


def test_description_has_no_objects(prepared: Path) -> None:
    description = json.loads((prepared / "prepared.json").read_text())
    assert description["settings"]["features"]["num_bins"] == 23
    assert description["stages"].keys() == set(ALL)
    assert all(time.time() > seconds >= 0 for seconds in description["seconds"].values())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an4_with_the_alignments_that_come_with_it(corpora: Path, tmp_path: Path) -> None:
    settings = PrepareSettings(alignments=corpora / "an4" / "align" / "states.txt.gz")
    outcome = prepare(corpora / "an4", tmp_path / "data", settings, jobs=2)
    parts = outcome.summary["splits"]
    assert [parts[name]["aligned"] for name in ("train", "dev", "test")] == [740, 103, 105]
    assert all(not part["failed"] for part in parts.values())
    assert outcome.data.num_senones == 102
