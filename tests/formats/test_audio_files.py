from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ, tone, write_audio, write_call, write_sphere
from roundelay.errors import DataError
from roundelay.formats import audio_files


@pytest.mark.parametrize(("name", "most"), [("a.wav", 1e-4), ("a.flac", 1e-4), ("a.ogg", 0.05), ("a.mp3", 0.05)])
def test_every_kind_of_file_gives_the_same_samples(tmp_path: Path, name: str, most: float) -> None:
    path = write_audio(tmp_path / name, 1.0)
    samples, rate = audio_files.read(path)
    assert rate == 16000
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert audio_files.info(path).seconds == pytest.approx(1.0, abs=0.1)
    middle = slice(4000, 12000)
    assert np.max(np.abs(samples[middle] - tone(1.0)[middle])) < most


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000])
def test_any_rate_is_resampled(tmp_path: Path, rate: int) -> None:
    path = write_audio(tmp_path / "a.wav", 1.0, rate)
    samples, given_rate = audio_files.read(path)
    assert given_rate == 16000
    assert len(samples) == pytest.approx(16000, abs=1)
    assert np.max(np.abs(samples[2000:14000] - tone(1.0)[2000:14000])) < 1e-3
    assert audio_files.read(path, rate=None)[1] == rate


def test_a_channel_is_picked_not_mixed(tmp_path: Path) -> None:
    both = np.stack([tone(0.5), np.zeros(8000)], axis=1)
    soundfile.write(tmp_path / "a.wav", both, 16000)
    assert np.max(np.abs(audio_files.read(tmp_path / "a.wav", channel=1)[0])) == 0
    assert np.max(audio_files.read(tmp_path / "a.wav", channel=0)[0]) > 0.4
    with pytest.raises(DataError, match=r"a\.wav: channel 2 is asked for .* there are 2"):
        audio_files.read(tmp_path / "a.wav", channel=2)


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_a_segment_is_that_part_of_the_whole(tmp_path: Path, name: str) -> None:
    path = write_audio(tmp_path / name, 1.0)
    whole = audio_files.read(path)[0]
    part = audio_files.read(path, begin=0.25, end=0.75)[0]
    assert np.array_equal(part, whole[4000:12000])
    assert np.array_equal(audio_files.read(path, begin=0.75, end=1.3)[0], whole[12000:])  # transcribers round


@pytest.mark.parametrize(("begin", "end"), [(0.5, 0.5), (0.9, 0.1), (-1.0, 0.5), (1.5, 1.6), (0.0, 9.0), (2.0, None)])
def test_a_segment_that_is_not_there_is_refused(tmp_path: Path, begin: float, end: float | None) -> None:
    path = write_audio(tmp_path / "a.wav", 1.0)
    with pytest.raises(DataError, match=r"a\.wav: a segment from"):
        audio_files.read(path, begin=begin, end=end)


def cut(path: Path, keep: float) -> Path:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])
    return path


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3", "a.sph"])
@pytest.mark.parametrize("keep", [0.0, 0.003, 0.5, 0.98])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, keep: float) -> None:
    path = write_call(tmp_path / name) if name == "a.sph" else write_audio(tmp_path / name, 2.0)
    audio_files.read(path)
    cut(path, keep)
    with pytest.raises(DataError) as caught:
        audio_files.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert ("empty" in str(caught.value)) == (keep == 0.0)


@pytest.mark.parametrize("name", ["missing.wav", "missing.sph", "folder.wav", "text.wav", "a.raw"])
def test_what_is_no_audio_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "text.wav").write_text("this is no audio at all, however long it may be")
    (tmp_path / "a.raw").write_bytes(bytes(1000))
    with pytest.raises(DataError, match=name):
        audio_files.read(tmp_path / name)
    with pytest.raises(DataError, match=name):
        audio_files.info(tmp_path / name)


def patched(path: Path, position: int, value: bytes) -> Path:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(value)] = value
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("rate", [0, 8000, 44100, 4_000_000_000])
def test_a_wrong_rate_in_a_wav_header_is_found(tmp_path: Path, rate: int) -> None:
    path = patched(write_audio(tmp_path / "a.wav"), 24, struct.pack("<I", rate))
    with pytest.raises(DataError, match=rf"a\.wav: the header contradicts itself: {rate} Hz, .* which is 16000 Hz"):
        audio_files.read(path)


def test_a_wav_header_that_is_wrong_throughout_is_found(tmp_path: Path) -> None:
    path = patched(write_audio(tmp_path / "a.wav"), 24, struct.pack("<II", 10, 20))
    with pytest.raises(DataError, match=r"a rate of 10 Hz"):
        audio_files.read(path)
    path = patched(write_audio(tmp_path / "b.wav"), 22, struct.pack("<H", 3))
    with pytest.raises(DataError, match="3 channels of 16 bits in blocks of 2 bytes"):
        audio_files.read(path)


def test_a_wav_written_into_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = write_audio(tmp_path / "a.wav")
    assert path.read_bytes()[36:40] == b"data"
    patched(path, 40, struct.pack("<I", 0xFFFFFFFF))
    assert len(audio_files.read(path)[0]) == 3200


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.array([0.0, np.nan, 0.0]), 16000, subtype="FLOAT")
    with pytest.raises(DataError, match="not finite"):
        audio_files.read(tmp_path / "a.wav")


@FUZZ
@given(st.binary(max_size=200), st.integers(0, 1100), st.sampled_from([".sph", ".wav", ".flac", ".ogg", ".mp3"]))
def test_damaged_files_give_samples_or_a_data_error(noise: bytes, position: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / f"a{kind}"
        if kind == ".sph":
            write_sphere(path, [np.zeros(50, np.int16)], coding="pcm01")
        else:
            write_audio(path, 0.05)
        try:
            samples, _ = audio_files.read(patched(path, position, noise), rate=None)
        except DataError:
            return
        assert np.isfinite(samples).all()
