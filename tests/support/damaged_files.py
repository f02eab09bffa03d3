"""Whole files of every kind that the package reads, their readers, and ways to damage them."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kaldifst
import numpy as np
import soundfile
from hypothesis import strategies as st

from roundelay import config
from roundelay.corpora.data_directory import read_split
from roundelay.experiment.settings import Experiment
from roundelay.files import read_json
from roundelay.formats import audio_files
from roundelay.formats.alignment_files import read_ctm, read_labels, read_mlf, read_runs, read_textgrid
from roundelay.formats.kaldi_archives import read_integers, read_matrices, read_scp
from roundelay.formats.text_tables import read_table
from roundelay.runs.chrome_trace import write_trace
from roundelay.runtimes.cluster import Cluster
from roundelay.speech.features.array_store import ArrayStore
from roundelay.speech.gmm.arrays import read_tensors, write_tensors
from roundelay.speech.language.decoding_graph import read_graph
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.language.ngram import read_arpa
from roundelay.training.event_order import read_order


@dataclass(frozen=True)
class Reader:
    """A reader and a whole file for it; ``inside`` is where in a folder the file is."""

    read: Callable[[Path], Any]
    sample: bytes
    inside: str = "file"
    beside: tuple[tuple[str, bytes], ...] = ()


def _wav() -> bytes:
    data = io.BytesIO()
    soundfile.write(data, np.sin(np.arange(800) / 9), 8000, format="WAV", subtype="PCM_16")
    return data.getvalue()


def _sphere() -> bytes:
    header = b"NIST_1A\n   1024\nsample_count -i 4\nsample_n_bytes -i 2\nchannel_count -i 1\n"
    header += b"sample_byte_format -s2 01\nsample_rate -i 16000\nsample_coding -s3 pcm\nend_head\n"
    return header.ljust(1024) + b"\1\0\2\0\3\0\4\0"


def _tensors() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_tensors(path, {"a": np.arange(6.0).reshape(2, 3)}, {"kind": "model"})
        return path.read_bytes()


def _graph() -> bytes:
    fst = kaldifst.StdVectorFst()
    for _ in range(4):
        fst.add_state()
    fst.start = 0
    for state in range(3):
        fst.add_arc(state, kaldifst.StdArc(state + 1, state + 1, 0.5, state + 1))
    fst.set_final(3, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        fst.write(f"{folder}/x.fst")
        return (Path(folder) / "x.fst").read_bytes()


SHARD = np.ones(6, "f4").tobytes()


def _index() -> bytes:
    index = {"format": 1, "dtype": "float32", "dim": 2, "ids": ["a", "b"], "rows": [1, 2]}
    return json.dumps(index | {"shards": [hashlib.sha256(SHARD).hexdigest()], "utterances": [2]}).encode()


def _first(listed: Any) -> list[Any]:
    return list(listed)


ARPA = rb"""\data\
ngram 1=3
ngram 2=1

\1-grams:
-0.5 <s> -0.3
-0.5 </s>
-0.7 YES -0.2

\2-grams:
-0.1 <s> YES

\end\
"""
TEXTGRID = b"""File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1
tiers? <exists>
size = 1
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 1
            text = "YES"
"""
ARK = b"utt1 \0B" + b"\4" + (2).to_bytes(4, "little") + b"".join(b"\4" + n.to_bytes(4, "little") for n in (3, 7))
MATRIX = b"utt1 \0BFM \4" + (1).to_bytes(4, "little") + b"\4" + (2).to_bytes(4, "little") + np.ones(2, "f4").tobytes()
RECORD = b'{"event": "compute", "member": "learner 0", "time": 1.5, "seconds": 0.5}\n' * 3
TOML = b"""learners = 2
clip = 5.0
[task]
name = "tiny"
batch = 16
[strategy]
name = "bmuf"
block = 10
[optimizer]
name = "SGD"
lr = 0.1
[budget]
epochs = 1.5
"""
CLUSTER = b"""nodes = 2
learners_per_node = 2
[compute]
seconds = 0.1
"""
SPLIT = (("text", b"a YES NO\n"), ("utt2spk", b"a s\n"), ("a.wav", _wav()))

READERS = {
    "wav": Reader(lambda path: audio_files.read(path, rate=None), _wav(), "a.wav"),
    "sphere": Reader(lambda path: audio_files.read(path, rate=None), _sphere(), "a.sph"),
    "tensors": Reader(lambda path: read_tensors(path, "model"), _tensors()),
    "store": Reader(
        lambda path: [np.asarray(rows) for rows in ArrayStore(path.parent).values()],
        _index(),
        "index.json",
        (("shard-00000.raw", SHARD),),
    ),
    "graph": Reader(read_graph, _graph()),
    "arpa": Reader(read_arpa, ARPA),
    "lexicon": Reader(Lexicon.read, b"YES Y EH S\nNO N OW\n"),
    "ctm": Reader(read_ctm, b"utt1 1 0.00 0.50 YES\nutt1 1 0.50 0.25 NO\n"),
    "textgrid": Reader(read_textgrid, TEXTGRID, "a.TextGrid"),
    "labels": Reader(read_labels, b"0 5000000 YES\n5000000 7500000 NO\n"),
    "mlf": Reader(read_mlf, b'#!MLF!#\n"*/a.lab"\n0 5000000 YES\n.\n'),
    "runs": Reader(lambda path: _first(read_runs(path)), b"a sil:3 Y:2\n"),
    "integers": Reader(lambda path: _first(read_integers(path)), ARK),
    "matrices": Reader(lambda path: _first(read_matrices(path)), MATRIX),
    "scp": Reader(read_scp, b"utt1 a.ark:5\n", beside=(("a.ark", ARK),)),
    "table": Reader(read_table, b"a one two\nb three\n"),
    "wav.scp": Reader(lambda path: read_split(path.parent), b"a a.wav\n", "wav.scp", SPLIT),
    "segments": Reader(
        lambda path: read_split(path.parent), b"a r 0.5 1.5\n", "segments", (*SPLIT, ("wav.scp", b"r a.wav\n"))
    ),
    "json": Reader(read_json, b'{"a": [1, 2.5, null]}'),
    "record": Reader(lambda path: write_trace(path, path.with_suffix(".trace")), RECORD),
    "order": Reader(read_order, b"c0 g r s2 r\n"),
    "experiment": Reader(Experiment.read, TOML, "a.toml"),
    "cluster": Reader(lambda path: config.build(Cluster, config.read(path), str(path)), CLUSTER, "a.toml"),
}


@st.composite
def damaged(draw: st.DrawFn, sample: bytes) -> bytes:
    """Cut, overwrite, insert or repeat something, or write anything at all."""
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["cut", "overwrite", "insert", "drop", "repeat", "anything"]))
        some = draw(st.binary(min_size=1, max_size=8))
        if kind == "cut":
            del data[at:]
        elif kind == "overwrite":
            data[at : at + len(some)] = some
        elif kind == "insert":
            data[at:at] = draw(
                st.sampled_from([some, b"\n", b"\0", b" ", b"nan", b"-1", b"9" * 30, "\u00e9\u2028".encode()])
            )
        elif kind == "drop":
            del data[at : at + len(some)]
        elif kind == "repeat":
            data[at:at] = data[at : at + 20]
        else:
            data = bytearray(draw(st.binary(max_size=60)))
    return bytes(data)


def put(reader: Reader, data: bytes, folder: Path) -> Path:
    """Write ``data`` where the reader expects them, and the files beside it; return their path."""
    for name, content in reader.beside:
        (folder / name).write_bytes(content)
    path = folder / reader.inside
    path.write_bytes(data)
    return path
