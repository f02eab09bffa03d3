"""Text of audio files with times: cut where long, joined where windows overlap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile

import decodable_run
import tone_corpus
from decodable_run import FIXED
from roundelay.errors import DataError, SettingsError
from roundelay.speech.decoding.transcription import (
    Transcript,
    Windows,
    Word,
    find_audio,
    find_joint,
    join_windows,
    transcribe,
)


def words(*rows: tuple[str, float, float]) -> list[Word]:
    return [Word(*row) for row in rows]


@pytest.mark.parametrize("seconds", [0.5, 29.9, 30.0, 30.5, 56.0, 56.1, 100.0, 3600.0])
def test_windows_cover_everything_and_overlap_enough(seconds: float) -> None:
    cuts = Windows(30.0, 4.0).cut(seconds)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == seconds
    for (_, end), (begin, _) in pairwise(cuts):
        assert end - begin == pytest.approx(4.0)
    assert all(0 < end - begin <= 30.0 for begin, end in cuts)
    assert all(end - begin > 4.0 for begin, end in cuts[1:]), "no window lies within the one before"


def test_windows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingsError, match="at most half the length, not 20 of 30 s"):
        Windows(30.0, 20.0)


def test_two_windows_meet_in_the_longest_pause() -> None:
    said = words(("A", 8.0, 9.0), ("B", 9.2, 9.5), ("C", 10.5, 11.0))
    assert find_joint(said, 8.0, 12.0) == pytest.approx(10.0)
    assert find_joint([], 8.0, 12.0) == pytest.approx(10.0)
    assert find_joint(words(("A", 7.0, 13.0)), 8.0, 12.0) == pytest.approx(10.0), "half-way where there is none"
    assert find_joint(words(("A", 8.0, 10.0), ("A", 8.1, 10.2)), 8.0, 12.0) == pytest.approx(11.1)


def test_words_of_the_overlap_come_once() -> None:
    first = words(("A", 1.0, 1.5), ("B", 8.5, 9.0), ("C", 9.2, 9.9))
    second = words(("B", 8.5, 9.0), ("C", 9.2, 9.9), ("D", 12.0, 12.5))
    joined = join_windows([first, second], [(0.0, 10.0), (8.0, 18.0)])
    assert [word.word for word in joined] == ["A", "B", "C", "D"]
    assert join_windows([first], [(0.0, 10.0)]) == first


def test_lines_end_at_pauses() -> None:
    transcript = Transcript(Path("x"), 9.0, words(("A", 0.0, 1.0), ("B", 1.1, 2.0), ("C", 4.0, 5.0)))
    assert [[word.word for word in line] for line in transcript.lines()] == [["A", "B"], ["C"]]
    assert transcript.text == "A B C"
    assert Transcript(Path("x"), 1.0).lines() == []


@pytest.fixture(scope="module")
def run() -> Path:
    return decodable_run.place() / "run"


def say(path: Path, said: list[str], seed: int = 3) -> Path:
    soundfile.write(path, tone_corpus.say(said, np.random.default_rng(seed)), tone_corpus.RATE, subtype="PCM_16")
    return path


def test_files_and_folders_are_transcribed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    one = say(tmp_path / "one.wav", ["MA", "SEE", "AS"])
    two = say(tmp_path / "folder" / "inside" / "two.flac", ["ME", "ME"])
    (tmp_path / "folder" / "notes.txt").write_text("none")
    files = find_audio([one, tmp_path / "folder"])
    assert files == [one, two]
    found = transcribe(run, files, language="flat", settings=FIXED)
    assert [transcript.text for transcript in found] == ["MA SEE AS", "ME ME"]
    for transcript in found:
        assert transcript.words[0].begin == pytest.approx(0.15, abs=0.05)
        assert transcript.words[-1].end == pytest.approx(transcript.seconds - 0.15, abs=0.06)


def test_of_two_channels_the_first_is_heard_and_that_is_said(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said, other = (tone_corpus.say(some, np.random.default_rng(3)) for some in (["MA", "SEE"], ["ME", "ME", "ME"]))
    count = min(len(said), len(other))
    soundfile.write(tmp_path / "call.wav", np.stack([said[:count], other[:count]], 1), tone_corpus.RATE)
    (found,) = transcribe(run, [tmp_path / "call.wav"], language="flat", settings=FIXED)
    assert found.text == "MA SEE"
    assert "call.wav: 2 channels; only the first is transcribed" in caplog.text


def test_a_long_file_is_transcribed_as_a_short_one(run: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    said = [[str(word) for word in random.choice(sorted(tone_corpus.LEXICON), size=3)] for _ in range(12)]
    samples = np.concatenate([tone_corpus.say(some, random) for some in said])
    soundfile.write(tmp_path / "long.wav", samples, tone_corpus.RATE)
    seconds = len(samples) / tone_corpus.RATE
    expected = " ".join(word for some in said for word in some)
    (whole,) = transcribe(run, [tmp_path / "long.wav"], language="flat", settings=FIXED)
    (cut,) = transcribe(
        run, [tmp_path / "long.wav"], language="flat", settings=FIXED, windows=Windows(3.0, 1.2)
    )  # fmt: skip
    assert seconds > 3 * 3.0
    assert whole.text == cut.text == expected
    for one, other in zip(whole.words, cut.words, strict=True):
        assert one.begin == pytest.approx(other.begin, abs=0.06)
    assert cut.words[-1].end <= seconds


def test_bad_files_are_named(run: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "short.wav", np.zeros(200), tone_corpus.RATE)
    with pytest.raises(DataError, match=r"short.wav: 0.013 s of audio; one frame needs 0.025 s"):
        transcribe(run, [tmp_path / "short.wav"], settings=FIXED)
    (tmp_path / "no.wav").write_text("words")
    with pytest.raises(DataError, match=r"no.wav: not audio that can be read"):
        transcribe(run, [tmp_path / "no.wav"], settings=FIXED)
    soundfile.write(tmp_path / "low.wav", np.zeros(8000), 8000)
    with pytest.raises(DataError, match=r"low.wav: 8000 Hz, but the run was trained on 16000"):
        transcribe(run, [tmp_path / "low.wav"], settings=FIXED)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: no audio in it"):
        find_audio([tmp_path / "empty"])


def test_silence_gives_no_words_and_a_warning(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    soundfile.write(tmp_path / "none.wav", np.zeros(2 * tone_corpus.RATE), tone_corpus.RATE)
    spoken = say(tmp_path / "one.wav", ["MA", "SEE", "AS"])
    found = transcribe(run, [tmp_path / "none.wav", spoken], language="flat", settings=FIXED)
    assert [each.text for each in found] == ["", "MA SEE AS"]
    assert "none.wav: silent" in caplog.text
    assert "/one.wav" not in caplog.text


def test_silence_gives_no_words_or_few(run: Path, tmp_path: Path) -> None:
    noise = 0.003 * np.random.default_rng(0).standard_normal(tone_corpus.RATE)
    soundfile.write(tmp_path / "quiet.wav", noise, tone_corpus.RATE)
    (found,) = transcribe(run, [tmp_path / "quiet.wav"], language="flat", settings=FIXED)
    assert found.seconds == pytest.approx(1.0)
    assert all(0 <= word.begin < word.end <= 1.0 for word in found.words)
