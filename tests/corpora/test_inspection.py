from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import soundfile

from corpus_files import write_audio, write_lines, write_split_files
from roundelay.corpora.inspection import inspect_corpus


def corpus(folder: Path) -> Path:
    write_split_files(folder / "train", "a-1", "a-2", "b-1")
    write_split_files(folder / "test", "c-1")
    return folder


def test_a_good_corpus_has_figures_and_no_complaints(tmp_path: Path) -> None:
    report = inspect_corpus(corpus(tmp_path), jobs=2)
    assert report.errors == []
    assert report.warnings == []
    train = report.splits["train"]
    assert (train.utterances, train.speakers, train.words, train.vocabulary) == (3, 2, 6, 2)
    assert train.hours == round(0.6 / 3600, 4)
    assert train.rates == {"16000": 3}
    assert report.as_json()["splits"]["test"]["utterances"] == 1


def test_everything_wrong_is_told_not_only_the_first(tmp_path: Path) -> None:
    folder = corpus(tmp_path) / "train" / "audio"
    (folder / "a-1.wav").write_bytes(b"")
    raw = (folder / "a-2.wav").read_bytes()
    (folder / "a-2.wav").write_bytes(raw[: len(raw) // 2])
    errors = inspect_corpus(tmp_path).errors
    assert len(errors) == 2
    assert "'a-1'" in errors[0]
    assert "a-1.wav: empty" in errors[0]
    assert "a-2.wav: truncated" in errors[1]


def test_silent_and_clipped_files_are_warned_of(tmp_path: Path) -> None:
    folder = corpus(tmp_path) / "train" / "audio"
    soundfile.write(folder / "a-1.wav", np.zeros(3200), 16000)
    soundfile.write(folder / "a-2.wav", np.clip(9 * np.sin(np.arange(3200)), -1, 1), 16000)
    report = inspect_corpus(tmp_path)
    assert report.errors == []
    assert "a-1.wav is silent (-120 dB" in report.warnings[0]
    assert "a-2.wav is clipped" in report.warnings[1]
    assert inspect_corpus(tmp_path, headers_only=True).warnings == []


def test_a_wrong_rate_is_found_by_the_duration_and_by_the_others(tmp_path: Path) -> None:
    folder = corpus(tmp_path)
    path = folder / "train" / "audio" / "a-1.wav"
    raw = bytearray(path.read_bytes())
    raw[24:32] = struct.pack("<II", 8000, 16000)
    path.write_bytes(raw)
    report = inspect_corpus(folder)
    assert "files of different rates: 3 at 16000 Hz, 1 at 8000 Hz" in report.warnings[0]
    write_lines(folder / "train" / "utt2dur", "a-1 0.2", "a-2 0.2", "b-1 0.2")
    (error,) = inspect_corpus(folder, headers_only=True).errors
    assert "'a-1'" in error
    assert "has 0.40 s and" in error
    assert "8000 Hz, is wrong" in error


def test_shared_speakers_and_unknown_words_are_warned_of(tmp_path: Path) -> None:
    folder = corpus(tmp_path)
    write_split_files(folder / "dev", "a-9")
    write_lines(folder / "lexicon.txt", "HELLO HH AX L OW")
    unknown, shared = inspect_corpus(folder).warnings
    assert "1 words have no pronunciation: WORLD" in unknown
    assert "1 of its speakers are in train too: a" in shared
    assert inspect_corpus(folder).splits["train"].unknown_words == 1


def test_checksums_are_compared(tmp_path: Path) -> None:
    folder = corpus(tmp_path)
    write_lines(folder / "SHA256SUMS", f"{'0' * 64}  train/text", f"{'0' * 64}  gone.txt")
    changed, gone = inspect_corpus(folder).errors
    assert "train/text: is not what SHA256SUMS says" in changed
    assert "'gone.txt' is not there" in gone or "gone.txt is not there" in gone


def test_segments_count_as_what_they_cut(tmp_path: Path) -> None:
    write_split_files(tmp_path, "a-1")
    write_audio(tmp_path / "audio" / "a-1.wav", 2.0)
    write_lines(tmp_path / "segments", "a-1-x a-1 0.5 1.0", "a-1-y a-1 1.5 2.2")
    write_lines(tmp_path / "text", "a-1-x YES", "a-1-y NO")
    write_lines(tmp_path / "utt2spk", "a-1-x a", "a-1-y a")
    for headers_only in (True, False):
        split = inspect_corpus(tmp_path, headers_only=headers_only).splits["all"]
        assert (split.shortest_seconds, split.longest_seconds) == (0.5, 0.5)
