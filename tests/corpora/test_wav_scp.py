from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ
from roundelay.corpora.wav_scp import parse
from roundelay.errors import DataError


@pytest.mark.parametrize(
    ("entry", "path", "channel"),
    [
        ("/data/a b.wav", "/data/a b.wav", 0),
        ("flac -c -d -s /data/a.flac |", "/data/a.flac", 0),
        ("/usr/bin/flac -cds a.flac|", "a.flac", 0),
        ("flac --decode --stdout --silent 'a b.flac' |", "a b.flac", 0),
        ("sph2pipe -f wav -p -c 1 a.sph |", "a.sph", 0),
        ("../tools/sph2pipe_v2.5/sph2pipe -f wav -p -c 2 a.sph |", "a.sph", 1),
        ("sph2pipe -f wav a.sph |", "a.sph", 0),
        ("sox a.flac -t wav - |", "a.flac", 0),
        ("sox a.mp3 -r 16000 -b 16 -t wav - |", "a.mp3", 0),
        ("sox -t sph a.sph -t wav - remix 2 |", "a.sph", 1),
        ("cat a.wav |", "a.wav", 0),
    ],
)
def test_usual_entries_are_read_directly(entry: str, path: str, channel: int) -> None:
    assert parse(entry, "wav.scp:1") == (Path(path), channel)


@pytest.mark.parametrize(
    "entry",
    [
        "| touch /tmp/x",
        "rm -rf / |",
        "flac -c a.flac |",  # does not decode
        "flac -c -d -s a.flac b.flac |",
        "flac -c -d -s a.flac | sox - -t wav - |",
        "sph2pipe -c 3 a.sph |",
        "sph2pipe -f raw a.sph |",
        "sph2pipe -t 1:2 a.sph |",
        "sox a.wav -t wav - speed 0.9 |",
        "sox a.wav -c 1 -t wav - |",
        "sox a.wav -t mp3 - |",
        "sox -n -t wav - |",
        "sox |",
        "cat a.wav b.wav |",
        "cat $(reboot) |",
        "cat a.wav; reboot |",
        "flac -c -d 'unfinished |",
        "|",
        "",
    ],
)
def test_anything_else_is_refused_with_its_line(entry: str) -> None:
    with pytest.raises(DataError, match=r"^data/wav\.scp:7: "):
        parse(entry, "data/wav.scp:7")


@FUZZ
@given(st.text(max_size=40), st.booleans())
def test_no_text_gives_anything_but_a_source_or_a_data_error(text: str, piped: bool) -> None:
    try:
        source = parse(f"{text} |" if piped else text, "x:1")
    except DataError:
        return
    assert source.channel >= 0
