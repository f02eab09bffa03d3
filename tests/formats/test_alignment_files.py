from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus_files import FUZZ
from roundelay.errors import DataError
from roundelay.formats import alignment_files
from roundelay.formats.alignment_files import Interval

PHONES = [Interval(0.0, 0.12, "SIL"), Interval(0.12, 0.2, "HH"), Interval(0.25, 0.4, "AY")]

MFA = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = 1.5
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 0.5
            text = ""
        intervals [2]:
            xmin = 0.5
            xmax = 1.1
            text = "say ""7"" "
        intervals [3]:
            xmin = 1.1
            xmax = 1.5
            text = ""
    item [2]:
        class = "TextTier"
        name = "clicks"
        xmin = 0
        xmax = 1.5
        points: size = 1
        points [1]:
            number = 0.7
            mark = "x"
"""
SHORT = """File type = "ooTextFile short"
"TextGrid"

0
1.5
<exists>
1
"IntervalTier"
"phones"
0
1.5
2
0
0.5
"sil"
0.5
1.5
"ah"
"""


def test_ctm_round_trip(tmp_path: Path) -> None:
    alignment_files.write_ctm(tmp_path / "a.ctm", {"b-1": PHONES, "a-1": PHONES[:1]})
    assert (tmp_path / "a.ctm").read_text().startswith("a-1 1 0.0000 0.1200 SIL\nb-1 1 ")
    assert alignment_files.read_ctm(tmp_path / "a.ctm") == {"b-1": PHONES, "a-1": PHONES[:1]}


def test_textgrid_of_mfa_and_of_praat(tmp_path: Path) -> None:
    (tmp_path / "a.TextGrid").write_text(MFA)
    assert alignment_files.read_textgrid(tmp_path / "a.TextGrid") == {"words": [Interval(0.5, 1.1, 'say "7"')]}
    (tmp_path / "b.TextGrid").write_bytes(SHORT.encode("utf-16"))
    assert alignment_files.read_textgrid(tmp_path / "b.TextGrid") == {
        "phones": [Interval(0.0, 0.5, "sil"), Interval(0.5, 1.5, "ah")]
    }


def test_textgrid_round_trip_with_gaps_filled(tmp_path: Path) -> None:
    tiers = {"phones": PHONES, "words": [Interval(0.12, 0.4, '"HI" [2]')]}
    alignment_files.write_textgrid(tmp_path / "a.TextGrid", tiers, 0.5)
    text = (tmp_path / "a.TextGrid").read_text()
    assert "intervals: size = 5" in text  # two gaps in the phones
    assert alignment_files.read_textgrid(tmp_path / "a.TextGrid") == tiers


def test_htk_labels_in_units_of_100_ns(tmp_path: Path) -> None:
    (tmp_path / "a.lab").write_text("0 1200000 sil[2] -345.6 sil\n1200000 2000000 hh_s2_1\n")
    assert alignment_files.read_labels(tmp_path / "a.lab") == [
        Interval(0.0, 0.12, "sil[2]"),
        Interval(0.12, 0.2, "hh_s2_1"),
    ]


def test_mlf_of_two_utterances(tmp_path: Path) -> None:
    rows = [f"{round(begin * 1e7)} {round(end * 1e7)} {label}\n" for begin, end, label in PHONES]
    (tmp_path / "a.mlf").write_text(f'#!MLF!#\n"*/b-1.lab"\n{"".join(rows)}.\n"*/a-1.lab"\n{rows[0]}.\n')
    assert alignment_files.read_mlf(tmp_path / "a.mlf") == {"a-1": PHONES[:1], "b-1": PHONES}
    (tmp_path / "b.mlf").write_text('#!MLF!#\n"C:\\data\\an4\\x-1.rec"\n0 100000 sil\n.\n')
    assert list(alignment_files.read_mlf(tmp_path / "b.mlf")) == ["x-1"]


def test_runs_of_states_of_the_an4_pack(corpora: Path) -> None:
    found = dict(alignment_files.read_runs(corpora / "an4" / "align" / "states.txt.gz"))
    assert len(found) == 948
    assert found["fash-an251-b"][0] == ("sil[2]", 10)
    assert sum(frames for _, frames in found["fash-an251-b"]) == 98  # one second: (16000 - 400) // 160 + 1


def test_ali_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "ali.1.gz").write_bytes(gzip.compress(b"a-1 4 4 5\nb-1 7\n"))
    (tmp_path / "ali.2").write_bytes(b"c-1 \0B\x04\x02\0\0\0\x04\x09\0\0\0\x04\x08\0\0\0")
    found = {
        name: ints.tolist() for name, ints in alignment_files.read_ali([tmp_path / "ali.1.gz", tmp_path / "ali.2"])
    }
    assert found == {"a-1": [4, 4, 5], "b-1": [7], "c-1": [9, 8]}
    with pytest.raises(DataError, match=r"'c-1' is in .*ali\.2 already"):
        list(alignment_files.read_ali([tmp_path / "ali.2", tmp_path / "ali.2"]))


READERS: dict[str, Callable[[Path], object]] = {
    "ctm": alignment_files.read_ctm,
    "textgrid": alignment_files.read_textgrid,
    "lab": alignment_files.read_labels,
    "mlf": alignment_files.read_mlf,
    "runs": lambda path: list(alignment_files.read_runs(path)),
    "ali": lambda path: list(alignment_files.read_ali([path])),
}


@pytest.mark.parametrize(
    ("kind", "content", "what"),
    [
        ("ctm", "a-1 1 0.0 0.1 A\na-1 1 x 0.1 B\n", "a:2: 'x' is not a time"),
        ("ctm", "a-1 1 0.0\n", "a:1: 'utterance channel begin duration label'"),
        ("ctm", "a-1 1 0.0 0.3 A\na-1 1 0.1 0.1 B\n", "'a-1': 'B' begins at 0.1 s, inside 'A'"),
        ("textgrid", "hello", "truncated"),
        ("textgrid", '"ooTextFile" "Sound"', "'Sound' where 'TextGrid' should be"),
        ("textgrid", MFA[:300], "truncated"),
        ("textgrid", MFA.replace("xmax = 0.5", 'xmax = "x"'), "a number was expected"),
        ("textgrid", MFA.replace("xmax = 1.1", "xmax = 0.2"), "before it begins"),
        ("textgrid", MFA.replace('"TextTier"', '"SoundTier"'), "unknown class 'SoundTier'"),
        ("lab", "0 100 sil\n50 x\n", "a:2: 'begin end label'"),
        ("lab", "0 20000000 a\n5 9 b\n", "inside 'a'"),
        ("mlf", "hello", "begins with #!MLF!#"),
        ("mlf", '#!MLF!#\n"*/a.lab"\n0 1 x\n', "the labels of 'a' have no end"),
        ("mlf", '#!MLF!#\n"*/a.lab"\n.\n"*/a.lab"\n.\n', "'a' comes twice"),
        ("mlf", "#!MLF!#\n0 1 x\n", "a:2: the name of a label file"),
        ("runs", "a-1 sil:3 x:0\n", "'x:0' is not state:frames"),
        ("ali", "a-1 1 2 x\n", "'a-1': not numbers"),
        ("ali", "a-1 99999999999999999999\n", "not numbers"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, kind: str, content: str, what: str) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(DataError) as caught:
        READERS[kind](tmp_path / "a")
    assert what in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "a"))


@pytest.mark.parametrize("kind", READERS)
def test_a_missing_file_and_bytes_that_are_no_text_are_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(DataError, match="missing"):
        READERS[kind](tmp_path / "missing")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xfd a \xc3\x28\n" * 3)
    with pytest.raises(DataError, match="bytes"):
        READERS[kind](tmp_path / "bytes")


PIECES = st.sampled_from(
    [b"a-1", b" ", b"\n", b"1", b"0.5", b'"', b"<exists>", b'"ooTextFile" "TextGrid" 0 1 <exists> 1 "IntervalTier" "x"',
     b"#!MLF!#\n", b'"*/a.lab"\n', b".\n", b"\0B\x04", b"\x02\0\0\0", b"nan", b"-3", b":", b"1e400", b"\x1f\x8b\x08"]
)  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
@FUZZ
@given(content=st.one_of(st.binary(max_size=80), st.lists(PIECES, max_size=30).map(b"".join)))
def test_any_bytes_are_read_or_refused(kind: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a"
        path.write_bytes(content)
        try:
            READERS[kind](path)
        except DataError:
            return


WORD = st.text(alphabet=st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=6)


@pytest.mark.slow
@FUZZ
@given(st.lists(st.tuples(st.integers(1, 500), WORD), min_size=1, max_size=10))
def test_textgrids_keep_any_label(lengths: Iterable[tuple[int, str]]) -> None:
    intervals, last = [], 0
    for length, label in lengths:
        intervals.append(Interval(last / 1000, (last + length) / 1000, label))
        last += length
    with tempfile.TemporaryDirectory() as name:
        alignment_files.write_textgrid(Path(name) / "a", {"phones": intervals}, last / 1000)
        assert alignment_files.read_textgrid(Path(name) / "a") == {"phones": intervals}
