from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command_line import without_coverage
from roundelay.corpora.data_directory import read_split
from roundelay.corpora.inspection import inspect_corpus
from roundelay.corpora.synthetic import espeak_phones, generator, script, sentences
from roundelay.errors import DataError, SettingsError
from roundelay.formats import audio_files
from roundelay.formats.alignment_files import read_ctm
from roundelay.formats.text_tables import read_table

espeakng_loader = pytest.importorskip("espeakng_loader", reason="the extra 'synthetic' is not installed")
SPLITS = ("train", "dev", "test")
HOURS = 0.08


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five minutes, so that every speaker is there."""
    out = tmp_path_factory.mktemp("synthetic") / "corpus"
    generator.make_corpus(out, hours=HOURS, jobs=2)
    return out


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_it_is_a_good_corpus_of_the_length_asked_for(corpus: Path) -> None:
    report = inspect_corpus(corpus)
    assert report.errors == []
    assert report.warnings == []
    hours = {name: split.hours for name, split in report.splits.items()}
    assert sum(hours.values()) == pytest.approx(HOURS, rel=0.06)
    assert hours["train"] / sum(hours.values()) == pytest.approx(0.75, abs=0.03)
    assert {name: split.speakers for name, split in report.splits.items()} == {"train": 36, "dev": 6, "test": 6}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_with_any_number_of_processes(tmp_path: Path) -> None:
    for jobs in (1, 2, 3):
        generator.make_corpus(tmp_path / str(jobs), hours=0.25, seed=5, jobs=jobs)  # six shards
    assert len(digests(tmp_path / "1")) > 400
    assert digests(tmp_path / "1") == digests(tmp_path / "2") == digests(tmp_path / "3")


@pytest.mark.slow
def test_a_process_of_its_own_gives_the_same_bytes_again(corpus: Path, tmp_path: Path) -> None:
    generator.make_corpus(tmp_path / "again", hours=HOURS, jobs=1)
    assert digests(tmp_path / "again") == digests(corpus)


def test_another_seed_gives_another_corpus(corpus: Path, tmp_path: Path) -> None:
    generator.make_corpus(tmp_path / "other", hours=0.003, seed=1)
    ours = {tuple(u.words) for u in read_split(tmp_path / "other" / "train")}
    assert len(ours) > 2
    assert ours != {tuple(u.words) for u in read_split(corpus / "train")[: len(ours)]}


def test_checksums_are_those_of_sha256sum(corpus: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=corpus, capture_output=True, check=False
    )
    assert done.returncode == 0
    listed = {line.split("  ")[1] for line in (corpus / "SHA256SUMS").read_text().splitlines()}
    assert listed == set(digests(corpus)) - {"SHA256SUMS", generator.MARKER}


@pytest.mark.parametrize("split", SPLITS)
def test_noisy_copies_have_the_words_and_the_timing_of_their_originals(corpus: Path, split: str) -> None:
    snr, clean = read_table(corpus / split / "utt2snr"), read_table(corpus / split / "utt2clean")
    reference = read_ctm(corpus / split / "reference.ctm")
    utterances = {u.id: u for u in read_split(corpus / split)}
    assert {float(value) for value in snr.values()} == {float("inf"), 20.0, 10.0, 5.0}
    assert set(clean) == {name for name, value in snr.items() if value != "inf"}
    assert len(clean) / len(snr) == pytest.approx(1 / 3, abs=0.08)
    for noisy, original in clean.items():
        assert snr[original] == "inf"
        assert utterances[noisy].words == utterances[original].words
        assert reference[noisy] == reference[original]


def test_noise_is_as_loud_as_told(corpus: Path) -> None:
    """In what is noise alone, before the first word, against the clean copy's speech."""
    snr, clean = read_table(corpus / "train" / "utt2snr"), read_table(corpus / "train" / "utt2clean")
    reference = read_ctm(corpus / "train" / "reference.ctm")
    utterances = {u.id: u for u in read_split(corpus / "train")}
    steady = {name for name, kind in read_table(corpus / "train" / "utt2noise").items() if kind in ("white", "pink")}
    seen = []
    for noisy in sorted(steady):
        samples, rate = audio_files.read(utterances[noisy].audio)
        begin, end = reference[noisy][0].end, reference[noisy][-1].begin
        lead = samples[: int(begin * rate) - 400]
        told = float(snr[noisy])
        speech = np.mean(samples[int(begin * rate) : int(end * rate)] ** 2) - np.mean(lead**2)
        seen.append(10 * np.log10(speech / np.mean(lead**2)) - told)
        assert np.std(audio_files.read(utterances[clean[noisy]].audio)[0][:1000]) < np.std(lead[:1000])
    assert len(seen) > 8
    assert np.median(seen) == pytest.approx(0, abs=1.5)


@pytest.mark.parametrize("split", SPLITS)
def test_the_reference_covers_every_utterance_and_follows_the_lexicon(corpus: Path, split: str) -> None:
    lexicon: dict[str, set[tuple[str, ...]]] = {}
    for line in (corpus / "lexicon.txt").read_text().splitlines():
        word, *names = line.split()
        lexicon.setdefault(word, set()).add(tuple(names))
    seconds = read_table(corpus / split / "utt2dur")
    reference, moved = (read_ctm(corpus / split / f"{name}.ctm") for name in ("reference", "closures"))
    for utterance in read_split(corpus / split):
        intervals = reference[utterance.id]
        assert intervals[0].begin == 0
        assert intervals[-1].end == pytest.approx(float(seconds[utterance.id]), abs=1e-3)
        assert all(a.end == pytest.approx(b.begin, abs=2e-4) for a, b in itertools.pairwise(intervals))
        said = [interval.label for interval in intervals if interval.label != espeak_phones.SILENCE]
        assert is_spelled(said, [lexicon[word] for word in utterance.words])
        assert [interval.label for interval in moved[utterance.id]] == [interval.label for interval in intervals]
        assert all(m.begin <= i.begin + 1e-4 for m, i in zip(moved[utterance.id], intervals, strict=True))


def is_spelled(said: list[str], words: list[set[tuple[str, ...]]]) -> bool:
    """Tell whether phones are pronunciations one after the other; an l melted into its vowel may be missing."""
    if not words:
        return not said
    for names in words[0]:
        for spoken in (names, tuple(n for i, n in enumerate(names) if n != "L" or i in (0, len(names) - 1))):
            if tuple(said[: len(spoken)]) == spoken and is_spelled(said[len(spoken) :], words[1:]):
                return True
    return False


def test_closures_belong_to_their_stops(corpus: Path) -> None:
    """Most stops inside an utterance begin earlier than their burst, by 20 to 80 ms."""
    reference, moved = (read_ctm(corpus / "train" / f"{name}.ctm") for name in ("reference", "closures"))
    shifts = [
        a.begin - b.begin
        for name in reference
        for before, a, b in zip(reference[name], reference[name][1:], moved[name][1:], strict=False)
        if a.label in ("P", "T", "K") and before.label != espeak_phones.SILENCE
    ]
    assert len(shifts) > 100
    assert np.mean(np.array(shifts) > 0.015) > 0.8
    assert 0.02 < np.median(shifts) < 0.06
    assert max(shifts) <= 0.0801


def test_the_lexicon_tells_all_words_apart(corpus: Path) -> None:
    entries = [line.split(" ", 1) for line in (corpus / "lexicon.txt").read_text().splitlines()]
    words = {word for word, _ in entries}
    assert words <= sentences.vocabulary()
    assert len({pronunciation for _, pronunciation in entries}) == len(entries)  # no homophones
    assert len(entries) < 1.5 * len(words)
    assert len({phone for _, pronunciation in entries for phone in pronunciation.split()}) < 50


def test_every_voice_is_one_that_espeak_knows_and_none_breathes() -> None:
    """An unknown variant would be passed over in silence; one with breath would differ from run to run."""
    folder = Path(espeakng_loader.get_data_path()) / "voices" / "!v"
    people = [speaker for split in SPLITS for speaker in script.list_speakers(split)]
    assert len({speaker.name for speaker in people}) == len(people) >= 40
    assert len({speaker.voice for speaker in people}) == len(people)
    for speaker in people:
        definition = (folder / speaker.voice.name.partition("+")[2]).read_text()
        assert "\nbreath" not in definition


def test_a_second_run_changes_nothing_and_another_corpus_is_refused(corpus: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    generator.make_corpus(corpus, hours=HOURS)
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("*")} == before
    with pytest.raises(DataError, match=r"contains a synthetic corpus of hours 0\.08.*, not of hours 0\.5"):
        generator.make_corpus(corpus, hours=0.5)
    with pytest.raises(DataError, match="contains other files"):
        generator.make_corpus(corpus / "flac", hours=0.5)


@pytest.mark.parametrize(("hours", "jobs"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_senseless_settings_are_refused(tmp_path: Path, hours: float, jobs: int) -> None:
    with pytest.raises(SettingsError, match="must be"):
        generator.make_corpus(tmp_path / "x", hours=hours, jobs=jobs)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_killed_run_is_gone_on_with_to_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    code = "import sys; from pathlib import Path; from roundelay.corpora.synthetic import generator"
    command = [sys.executable, "-c", f"{code}; generator.make_corpus(Path(sys.argv[1]), hours=0.08)", str(out)]
    with subprocess.Popen(command, start_new_session=True) as run:
        deadline = time.monotonic() + 60
        while not list(out.glob(".shards/0*.json")) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGKILL)
    assert not (out / generator.MARKER).exists()
    made = list(out.glob(".shards/0*.json"))
    assert made
    first = json.loads(made[0].read_text())[0]
    (out / first["path"]).write_bytes(b"half")  # as a power cut might leave it
    told: list[tuple[int, int]] = []
    generator.make_corpus(out, hours=HOURS, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (len(made) - 1, told[0][1])
    assert digests(out) == digests(corpus)


@pytest.mark.slow
def test_a_full_disk_is_named_and_can_be_gone_on_from(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "full"
    code = (
        "import resource, signal, sys; from pathlib import Path; from roundelay.corpora.synthetic import generator\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, -1))\n"
        "generator.make_corpus(Path(sys.argv[1]), hours=0.08)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False, env=without_coverage()
    )
    assert done.returncode != 0
    line = done.stderr.strip().splitlines()[-1]
    assert "DataError" in line
    assert "cannot be written: File too large" in line
    assert str(out / "flac") in line
    assert not (out / generator.MARKER).exists()
    generator.make_corpus(out, hours=HOURS)
    assert digests(out) == digests(corpus)
