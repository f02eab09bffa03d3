"""Small audio files of every kind for the tests of corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from hypothesis import settings
from numpy.typing import NDArray

FUZZ = settings(deadline=None, derandomize=True, max_examples=100)
"""For fuzzing: the same inputs each time, however slow the machine."""


def tone(seconds: float, rate: int = 16000, hertz: float = 440.0) -> NDArray[np.float64]:
    """Return a tone at half scale."""
    wave: NDArray[np.float64] = 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)
    return wave


def write_audio(path: Path, seconds: float = 0.2, rate: int = 16000) -> Path:
    """Write a tone as the kind of file that the name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, tone(seconds, rate), rate)
    return path


def ulaw_code(samples: NDArray[np.int16]) -> NDArray[np.uint8]:
    """Encode by G.711, one sample after the other, as the standard's flow chart has it."""
    codes = []
    for sample in samples.tolist():
        sign, magnitude = (0x80, -sample) if sample < 0 else (0, sample)
        magnitude = min(magnitude, 32635) + 0x84
        exponent = magnitude.bit_length() - 8
        codes.append(~(sign | exponent << 4 | magnitude >> (exponent + 3) & 0x0F) & 0xFF)
    return np.array(codes, np.uint8)


def write_sphere(path: Path, channels: list[NDArray[np.int16]], *, rate: int = 8000, coding: str = "ulaw") -> Path:
    """Write a NIST SPHERE file as LDC's are: mu-law, or PCM with the low byte first (``pcm01``) or last (``pcm10``)."""
    frames = np.stack(channels, axis=1)
    if coding == "ulaw":
        body, size, order = ulaw_code(frames.reshape(-1)).tobytes(), 1, "1"
    else:
        order, size = coding.removeprefix("pcm"), 2
        body = frames.astype("<i2" if order == "01" else ">i2").tobytes()
    fields = [
        f"channel_count -i {len(channels)}",
        f"sample_count -i {len(frames)}",
        f"sample_rate -i {rate}",
        f"sample_n_bytes -i {size}",
        f"sample_byte_format -s{len(order)} {order}",
        f"sample_coding -s{len(coding.rstrip('01'))} {coding.rstrip('01')}",
    ]
    header = "NIST_1A\n   1024\n" + "\n".join(fields) + "\nend_head\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.encode().ljust(1024) + body)
    return path


def write_call(path: Path, seconds: float = 3.0) -> Path:
    """Write a telephone call: a low tone on side A, a high one on side B."""
    sides = [(tone(seconds, 8000, hertz) * 32767).astype(np.int16) for hertz in (300.0, 1200.0)]
    return write_sphere(path, sides)


def write_lines(path: Path, *lines: str) -> Path:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def write_split_files(folder: Path, *names: str, rate: int = 16000) -> Path:
    """Write a split with an utterance for each name, ``speaker-number``."""
    for name in names:
        write_audio(folder / "audio" / f"{name}.wav", rate=rate)
    write_lines(folder / "wav.scp", *(f"{name} audio/{name}.wav" for name in names))
    write_lines(folder / "text", *(f"{name} HELLO WORLD" for name in names))
    write_lines(folder / "utt2spk", *(f"{name} {name.partition('-')[0]}" for name in names))
    return folder


def write_librispeech(root: Path) -> Path:
    """Write a tiny folder of the shape of LibriSpeech."""
    for part, speaker in (
        ("train-clean-5", "1088"),
        ("train-other-500", "20"),
        ("dev-clean-2", "1272"),
        ("test-other", "367"),
    ):
        chapter = root / "LibriSpeech" / part / speaker / "134315"
        names = [f"{speaker}-134315-{i:04d}" for i in range(2)]
        for name in names:
            write_audio(chapter / f"{name}.flac")
        write_lines(chapter / f"{speaker}-134315.trans.txt", *(f"{name} AS YOU KNOW" for name in names))
    return root
