"""Corpora with hostile names in them, one for each importer, in a folder with files of a user that must not change."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from corpus_files import write_audio, write_call, write_lines, write_sphere
from roundelay.errors import RoundelayError

OUTSIDE = ["..", "../victim", "../../victim/x", "x/../../../victim/x", "{world}/victim/x", "..\\victim", "../text"]
ODD = ["", ".", "a/b", ".hidden", "x" * 300, "a\nb", "a\0b", "\ud800", "\x1b[2J", "train", "dev-clean", "con:", "-"]
NAMES = st.sampled_from(OUTSIDE + ODD) | st.text(st.sampled_from("a.-/\\ \t\u00e4\u2028"), max_size=8)
LINKS = st.sampled_from(["", "train", "dev", "lm", "text", "lexicon.txt", ".corpus.json.1", "export", "original"])


class World:
    """A folder with ``in`` and ``out``, and beside them files of the user that must stay as they are."""

    def __init__(self, root: Path) -> None:
        self.root, self.source, self.out = root, root / "in", root / "out"
        self.before: dict[str, Any] = {}
        for name in ("text", "utt2spk", "wav.scp", "victim/text", "victim/train/text", "victim/x/text"):
            write_lines(root / name, "mine")
        self.source.mkdir()
        self.out.mkdir()

    def name(self, name: str) -> str:
        """Return a name with the world's own path in it."""
        return name.replace("{world}", str(self.root))

    def ready(self) -> None:
        """Remember everything outside of ``out``."""
        self.before = self.others()

    def others(self) -> dict[str, Any]:
        """Return everything outside of ``out``."""
        found: dict[str, Any] = {}
        for folder, folders, files in os.walk(self.root):
            if Path(folder) == self.root:
                folders.remove("out")
            for name in (*folders, *files):
                path = Path(folder, name)
                found[str(path)] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        return found

    def plant(self, link: str) -> None:
        """Make a link in ``out`` to the user's files, if it has a name."""
        if link and not (self.out / link).exists():
            (self.out / link).symlink_to(self.root / "victim")


@contextlib.contextmanager
def untouched() -> Iterator[World]:
    """Make a world, and check at the end that nothing outside of ``out`` has changed; errors have to be ours."""
    with tempfile.TemporaryDirectory(prefix="roundelay-tests-") as folder:
        world = World(Path(folder).resolve())
        with contextlib.suppress(RoundelayError):
            yield world
        assert world.before, "the test has to call world.ready()"
        assert world.others() == world.before


def _audio(world: World, *names: str) -> None:
    for name in names:
        write_audio(world.source / name)


def _write(world: World, name: str, *lines: str) -> bool:
    """Write a file of the source, if there can be one of this name."""
    try:
        path = world.source / name
        if not path.resolve().is_relative_to(world.source):
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), errors="surrogatepass")
        return True
    except (OSError, ValueError):
        return False


def _lhotse(world: World, name: str) -> None:
    _audio(world, "a.wav")
    source = {"id": name, "sources": [{"type": "file", "channels": [0], "source": "a.wav"}], "duration": 0.2}
    said = {"id": name, "start": 0, "duration": 0.2, "text": "HI", "speaker": name, "channel": 0}
    cut = {"id": name, "start": 0, "recording": source, "supervisions": [said]}
    for part in ("train", "dev", name.replace("/", "").replace("\0", "")):
        _write(world, f"x_cuts_{part}.jsonl", json.dumps(cut))


def _folder(world: World, name: str) -> None:
    _audio(world, "a.wav", "b.wav", "c.wav")
    plain = name.replace("\t", "").replace("\n", "")
    lines = [f"{audio}.wav\tHI\t{speaker}\t{plain}" for audio, speaker in zip("abc", ("x", "y", plain), strict=True)]
    _write(world, "transcripts.tsv", "path\ttext\tspeaker\tsplit", *lines)


def _kaldi(world: World, name: str) -> None:
    write_audio(world.source / "a.wav")
    for split in ("train", "dev", name.replace("/", "")):
        if _write(world, f"{split}/wav.scp", f"{name} a.wav"):
            _write(world, f"{split}/text", f"{name} HI")
            _write(world, f"{split}/utt2spk", f"{name} s")
    _write(world, "lexicon.txt", "HI HH AY")
    _write(world, f"lm/{name.replace('/', '')}.arpa", "\\data\\")


def _an4(world: World, name: str) -> None:
    noise = np.zeros(4000, np.int16) + 5
    speakers = ["a", "b", name.replace("/", "").replace("\n", "") or "c"]
    files = [f"clstk/{speaker}/an1-{speaker}-b" for speaker in speakers]
    for file in files:
        with contextlib.suppress(Exception):  # no such file can be
            write_sphere(world.source / "wav" / f"{file}.sph", [noise], rate=16000, coding="pcm10")
    _write(world, "etc/an4_train.fileids", *files)
    _write(world, "etc/an4_train.transcription", *(f"<s> HI </s> (an1-{speaker}-b)" for speaker in speakers))
    _write(world, "etc/an4.dic", "HI HH AY")
    _write(world, "etc/an4.ug.lm", "\\data\\")


def _librispeech(world: World, name: str) -> None:
    for part in ("train-clean-5", name.replace("/", "")):
        with contextlib.suppress(Exception):  # no such file can be
            write_audio(world.source / "LibriSpeech" / part / "1" / "2" / "1-2-0.flac")
        _write(world, f"LibriSpeech/{part}/1/2/1-2.trans.txt", "1-2-0 HI")


def _fsdd(world: World, name: str) -> None:
    for speaker in ("a", "theo", "yweweler", name.replace("/", "")):
        with contextlib.suppress(Exception):  # no such file can be
            write_audio(world.source / "recordings" / f"1_{speaker}_0.wav")


def _yesno(world: World, name: str) -> None:
    for file in ("0_1", "1_0", "1_1", name.replace("/", "")):
        with contextlib.suppress(Exception):  # no such file can be
            write_audio(world.source / "waves" / f"{file}.wav", rate=8000)


def _switchboard(world: World, name: str) -> None:
    for number in (2001, 2005):
        write_call(world.source / f"sw0{number}.sph")
        for side in "AB":
            _write(world, f"t/sw{number}{side}-ms98-a-trans.text", f"sw{number}{side}-ms98-a-0001 0.1 0.9 hi")
    _write(world, "conv.tab", f"2001,x,{name},b", f"2005,x,c,{name}")


def _fisher(world: World, name: str) -> None:
    for call in ("00001", "00002", "00003"):
        write_call(world.source / f"fe_03_{call}.sph")
        _write(world, f"fe_03_{call}.txt", "0.1 0.9 A: hi", "1.0 1.9 B: oh")
    _write(world, "x_calldata.tbl", "CALL_ID,APIN,BPIN", *(f"{call},{name},p{call}" for call in (1, 2, 3)))


SOURCES: dict[str, Callable[[World, str], None]] = {
    "lhotse": _lhotse,
    "folder": _folder,
    "kaldi": _kaldi,
    "an4": _an4,
    "librispeech": _librispeech,
    "fsdd": _fsdd,
    "yesno": _yesno,
    "switchboard": _switchboard,
    "fisher": _fisher,
}
