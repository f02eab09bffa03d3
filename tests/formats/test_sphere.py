"""SPHERE files: samples to the bit, mu-law as others decode it, and what is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ, ulaw_code, write_call, write_sphere
from roundelay.errors import DataError
from roundelay.formats import audio_files, sphere


@pytest.mark.parametrize("coding", ["pcm01", "pcm10"])
def test_sphere_pcm_is_read_to_the_bit(tmp_path: Path, coding: str) -> None:
    left, right = (np.random.default_rng(0).integers(-32768, 32768, (2, 500))).astype(np.int16)
    path = write_sphere(tmp_path / "a.sph", [left, right], rate=16000, coding=coding)
    assert np.array_equal(audio_files.read(path, channel=0)[0] * 32768, left)
    assert np.array_equal(audio_files.read(path, channel=1, begin=0.01, end=0.02)[0] * 32768, right[160:320])


def test_sphere_mu_law_is_decoded_as_libsndfile_does(tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8)
    header = "NIST_1A\n   1024\nsample_count -i 256\nsample_rate -i 8000\nsample_coding -s4 ulaw\nend_head\n"
    (tmp_path / "a.sph").write_bytes(header.encode().ljust(1024) + codes.tobytes())
    with soundfile.SoundFile(tmp_path / "a.au", "w", 8000, 1, "ULAW", format="AU") as file:
        file.write(np.zeros(256, np.int16))
    raw = (tmp_path / "a.au").read_bytes()
    (tmp_path / "a.au").write_bytes(raw[:-256] + codes.tobytes())
    theirs, _ = soundfile.read(tmp_path / "a.au", dtype="float32")
    ours, rate = audio_files.read(tmp_path / "a.sph", rate=None)
    assert rate == 8000
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ulaw_code((ours * 32768).astype(np.int16))[1:127], codes[1:127])


def test_a_call_has_two_sides(tmp_path: Path) -> None:
    path = write_call(tmp_path / "fe_03_00001.sph", 1.0)
    for channel, hertz in ((0, 300), (1, 1200)):
        samples, _ = audio_files.read(path, channel=channel)
        assert np.argmax(np.abs(np.fft.rfft(samples))) == pytest.approx(hertz, abs=2)


def test_shorten_is_named_as_unsupported(tmp_path: Path) -> None:
    header = "NIST_1A\n   1024\nsample_coding -s26 ulaw,embedded-shorten-v2.00\nend_head\n"
    (tmp_path / "a.sph").write_bytes(header.encode().ljust(1024) + bytes(100))
    with pytest.raises(DataError, match=r"a\.sph: compressed by shorten: not supported; .*sph2pipe"):
        audio_files.read(tmp_path / "a.sph")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_rate", "-5"),
        ("sample_rate", "fast"),
        ("channel_count", "0"),
        ("sample_n_bytes", "4"),
        ("sample_coding", "alaw"),
    ],
)
def test_a_wrong_sphere_header_is_found(tmp_path: Path, field: str, value: str) -> None:
    path = write_call(tmp_path / "a.sph")
    raw = path.read_bytes().decode("latin-1")
    lines = [f"{field} -s4 {value}" if line.startswith(field) else line for line in raw[:1024].rstrip().split("\n")]
    path.write_bytes("\n".join(lines).encode().ljust(1024) + raw[1024:].encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.sph: "):
        audio_files.read(path)


@FUZZ
@given(st.binary(max_size=300))
def test_any_sphere_header_is_read_or_refused(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.sph"
        path.write_bytes(b"NIST_1A\n   1024\n" + body)
        try:
            sphere.read_header(path)
        except DataError:
            return
