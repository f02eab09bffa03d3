"""Manifests of lhotse."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from corpus_files import write_audio, write_call, write_lines
from imported_corpus import imported, words
from roundelay import corpora
from roundelay.corpora.importer import import_corpus
from roundelay.errors import DataError


def recording(name: str, path: str, **more: object) -> str:
    source = {"type": "file", "channels": [0], "source": path, **more}
    return json.dumps({"id": name, "sources": [source], "sampling_rate": 16000, "num_samples": 3200, "duration": 0.2})


def supervision(name: str, recording: str, speaker: str, **more: object) -> str:
    times = {"start": 0.0, "duration": 0.2, "channel": 0}
    return json.dumps({"id": name, "recording_id": recording, "text": "HI YOU", "speaker": speaker, **times, **more})


def test_lhotse_recordings_and_supervisions(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for part, speakers in (("train-clean-5", "ab"), ("dev-clean-2", "c")):
        names = [f"{speaker}-1" for speaker in speakers]
        for name in names:
            write_audio(source / "audio" / f"{name}.wav")
        lines = [recording(name, f"audio/{name}.wav") for name in names]
        (source / f"mini_recordings_{part}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        write_lines(source / f"mini_supervisions_{part}.jsonl", *(supervision(f"{n}-0", n, n[0]) for n in names))
    found = imported("lhotse", source, tmp_path / "out")
    assert words(found["train"]) == {"a-1-0": "HI YOU", "b-1-0": "HI YOU"}
    assert found["dev"][0].begin is None


def test_lhotse_cuts_with_commands_and_channels(tmp_path: Path) -> None:
    source = tmp_path / "in"
    write_call(source / "call.sph")
    lines = []
    for i, speaker in enumerate("abc"):
        entry = json.loads(recording("call", "sph2pipe -f wav -p -c 2 call.sph |", type="command", channels=[1]))
        inside = json.loads(supervision(f"{speaker}-{i}", "call", speaker, channel=[1], start=0.1))
        cut = {"id": f"cut-{i}", "start": float(i) / 2, "duration": 0.4, "channel": 1, "supervisions": [inside]}
        lines.append(json.dumps({**cut, "recording": {**entry, "duration": 3.0}, "type": "MonoCut"}))
    write_lines(source / "cuts.jsonl", *lines)
    found = imported("lhotse", source, tmp_path / "out")
    last = next(u for us in found.values() for u in us if u.id == "c-2")
    assert (last.begin, last.end, last.channel) == (1.1, 1.3, 1)


@pytest.mark.parametrize(
    ("recordings", "supervisions", "what"),
    [
        ("{", "", r"recordings\.jsonl:1: not JSON"),
        ("[]", "", r"recordings\.jsonl:1: an object is wanted"),
        ("{}", "", r"recordings\.jsonl:1: id must be a text"),
        (recording("r", "gone.wav"), supervision("s", "r", "a"), "the audio of 'r' is not there: gone.wav"),
        (recording("r", "a.wav"), supervision("s", "q", "a"), r"supervisions\.jsonl:1: the recording 'q' is not among"),
        (recording("r", "a.wav"), supervision("s", "r", "a", text=""), "'s' has no words"),
        (recording("r", "a.wav"), supervision("s", "r", "a", start="x"), "start must be a number"),
        (recording("r", "a.wav"), supervision("s", "r", "a", channel=3), "no source with channel 3"),
        (recording("r", "http://x", type="url"), supervision("s", "r", "a"), "a source of type 'url'"),
        (recording("r", "rm a.wav", type="command"), supervision("s", "r", "a"), "commands are not run"),
        (recording("r", "a.wav"), "", "no transcript of the recording 'r'"),
    ],
)
def test_lhotse_with_something_wrong(tmp_path: Path, recordings: str, supervisions: str, what: str) -> None:
    write_audio(tmp_path / "in" / "a.wav")
    write_lines(tmp_path / "in" / "recordings.jsonl", recordings)
    write_lines(tmp_path / "in" / "supervisions.jsonl", supervisions)
    with pytest.raises(DataError, match=what):
        import_corpus(corpora.load("lhotse"), tmp_path / "in", tmp_path / "out")
