from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ, write_audio, write_lines, write_split_files
from roundelay.corpora.data_directory import Utterance, find_splits, read_split, write_split
from roundelay.errors import DataError


def test_a_split_is_read_sorted_with_its_audio_found(tmp_path: Path) -> None:
    split = write_split_files(tmp_path / "train", "b-2", "a-1")
    first, second = read_split(split)
    assert first == Utterance("a-1", split / "audio" / "a-1.wav", "a", ("HELLO", "WORLD"))
    assert second.speaker == "b"
    assert second.audio.is_file()


def test_relative_paths_count_from_the_scp_then_from_its_parents(tmp_path: Path) -> None:
    split = write_split_files(tmp_path / "train", "a-1")
    (tmp_path / "audio").mkdir()
    above = write_audio(tmp_path / "audio" / "a-1.wav")
    assert read_split(split)[0].audio == split / "audio" / "a-1.wav"
    (split / "audio" / "a-1.wav").unlink()
    assert read_split(split)[0].audio == above


def test_segments_cut_recordings_and_take_their_channel(tmp_path: Path) -> None:
    write_audio(tmp_path / "call.sph.wav", 2.0)
    write_lines(
        tmp_path / "wav.scp",
        "call-A sph2pipe -f wav -p -c 1 call.sph.wav |",
        "call-B /opt/sph2pipe -f wav -p -c 2 call.sph.wav |",
    )
    write_lines(tmp_path / "segments", "call-A-1 call-A 0.5 1.25", "call-B-1 call-B 1 -1")
    write_lines(tmp_path / "text", "call-A-1 YES", "call-B-1 NO")
    write_lines(tmp_path / "utt2spk", "call-A-1 A", "call-B-1 B")
    first, second = read_split(tmp_path)
    assert (first.channel, first.begin, first.end) == (0, 0.5, 1.25)
    assert (second.channel, second.begin, second.end) == (1, 1.0, None)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    inside = write_audio(tmp_path / "corpus" / "flac" / "with blank.flac")
    outside = write_audio(tmp_path / "elsewhere.wav")
    told = [
        Utterance("a-1", inside, "a", ("ONE",), 0, 0.0, 0.1),
        Utterance("a-2", inside, "a", ("TWO", "WORDS"), 1, 0.1, None),
        Utterance("b-1", outside, "b", ("THREE",), 0, None, None),
    ]
    write_split(tmp_path / "corpus" / "train", reversed(told))
    back = read_split(tmp_path / "corpus" / "train")
    assert [(u.id, u.audio, u.words, u.channel, u.begin or 0, u.end) for u in back] == [
        (u.id, u.audio, u.words, u.channel, u.begin or 0, u.end) for u in told
    ]
    (tmp_path / "corpus").rename(tmp_path / "moved")
    assert read_split(tmp_path / "moved" / "train")[0].audio == tmp_path / "moved" / "flac" / "with blank.flac"


def test_splits_are_found_main_ones_first(tmp_path: Path) -> None:
    for name in ("test", "dev-other", "train", "dev"):
        write_split_files(tmp_path / name, "a-1")
    (tmp_path / "lm").mkdir()
    assert list(find_splits(tmp_path)) == ["train", "dev", "test", "dev-other"]
    assert find_splits(tmp_path / "dev") == {"all": tmp_path / "dev"}


def test_a_folder_without_a_corpus_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no corpus here"):
        find_splits(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        find_splits(tmp_path / "missing")


def broken(split: Path, how: str) -> None:
    """Break a split with the utterances a-1 and a-2."""
    match how:
        case "missing audio":
            (split / "audio" / "a-2.wav").unlink()
        case "transcript without audio":
            write_lines(split / "text", "a-1 HELLO", "a-2 HELLO", "a-3 HELLO")
        case "audio without transcript":
            write_lines(split / "text", "a-1 HELLO")
        case "audio without speaker":
            write_lines(split / "utt2spk", "a-1 a")
        case "duplicate id":
            write_lines(split / "wav.scp", "a-1 audio/a-1.wav", "a-2 audio/a-2.wav", "a-1 audio/a-2.wav")
        case "duplicate transcript":
            write_lines(split / "text", "a-1 HELLO", "a-1 HELLO", "a-2 HELLO")
        case "not UTF-8":
            (split / "text").write_bytes(b"a-1 HELLO\na-2 \xc9T\xc9\n")
        case "no words":
            write_lines(split / "text", "a-1 HELLO", "a-2")
        case "two speakers":
            write_lines(split / "utt2spk", "a-1 a", "a-2 a b")
        case "no wav.scp":
            (split / "wav.scp").unlink()
        case "empty wav.scp":
            (split / "wav.scp").write_text("\n")
        case "no path":
            write_lines(split / "wav.scp", "a-1 audio/a-1.wav", "a-2")
        case "command":
            write_lines(split / "wav.scp", "a-1 audio/a-1.wav", "a-2 curl http://x/a.wav | sox - -t wav - |")
        case "segment of nothing":
            write_lines(split / "segments", "a-1 a-1 0 0.1", "a-2 a-9 0 0.1")
        case "backward segment":
            write_lines(split / "segments", "a-1 a-1 0 0.1", "a-2 a-2 0.1 0.05")
        case "wordy segment":
            write_lines(split / "segments", "a-1 a-1 0 0.1", "a-2 a-2 zero one")
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    ("how", "where", "what"),
    [
        ("missing audio", "wav.scp:2", "'a-2' is not there"),
        ("transcript without audio", "text", "'a-3' has no audio"),
        ("audio without transcript", "wav.scp", "'a-2' has no line in text"),
        ("audio without speaker", "wav.scp", "'a-2' has no line in utt2spk"),
        ("duplicate id", "wav.scp:3", "'a-1' is already in line 1"),
        ("duplicate transcript", "text:2", "'a-1' is already in line 1"),
        ("not UTF-8", "text:2", "not UTF-8"),
        ("no words", "text", "'a-2' has no words"),
        ("two speakers", "utt2spk", "'a-2' needs one speaker"),
        ("no wav.scp", "wav.scp", "cannot be read: No such file"),
        ("empty wav.scp", "wav.scp", "no recordings"),
        ("no path", "wav.scp:2", "no audio is named"),
        ("command", "wav.scp:2", "commands are not run"),
        ("segment of nothing", "segments:2", "'a-9', which wav.scp does not have"),
        ("backward segment", "segments:2", "the end must come after the begin"),
        ("wordy segment", "segments:2", "needs a recording, a begin and an end"),
    ],
)
def test_bad_input_is_named_by_file_and_utterance(tmp_path: Path, how: str, where: str, what: str) -> None:
    split = write_split_files(tmp_path / "train", "a-1", "a-2")
    broken(split, how)
    with pytest.raises(DataError) as caught:
        read_split(split)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{split / where}: ")
    assert what in line


def untouched(folder: Path) -> Path:
    """Write a split whose audio is only a name: the tables are what is fuzzed."""
    (folder / "audio").mkdir()
    (folder / "audio" / "a-1.wav").touch()
    for table, line in (("wav.scp", "a-1 audio/a-1.wav"), ("text", "a-1 HI"), ("utt2spk", "a-1 a")):
        (folder / table).write_text(f"{line}\n")
    return folder


def test_writing_refuses_an_id_that_comes_twice(tmp_path: Path) -> None:
    one = Utterance("a-1", tmp_path / "x.wav", "a", ("ONE",))
    with pytest.raises(DataError, match="'a-1' comes twice"):
        write_split(tmp_path / "train", [one, one])
    assert not (tmp_path / "train" / "wav.scp").exists()


@FUZZ
@given(st.dictionaries(st.sampled_from(["wav.scp", "text", "utt2spk", "segments"]), st.binary(max_size=60)))
def test_any_bytes_give_utterances_or_a_data_error(tables: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        split = untouched(Path(name))
        for table, content in tables.items():
            (split / table).write_bytes(content)
        try:
            found = read_split(split)
        except DataError:
            return
        assert all(utterance.words and utterance.speaker for utterance in found)


@FUZZ
@given(st.text(alphabet="a-1 \taudio/.wv|$;'\"sox flcph2ie", max_size=60))
def test_any_scp_line_gives_an_existing_file_or_a_data_error(line: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        split = untouched(Path(name))
        (split / "wav.scp").write_text(f"a-1 {line}\n")
        try:
            (found,) = read_split(split)
        except DataError:
            return
        assert found.audio.is_file()
