"""Switchboard and Hub5 from tiny folders of the shape of the originals."""

from __future__ import annotations

from pathlib import Path

import pytest

from corpus_files import write_call, write_lines
from imported_corpus import imported, words
from roundelay import corpora
from roundelay.corpora.importer import import_corpus
from roundelay.corpora.switchboard import clean_word
from roundelay.errors import DataError


def switchboard(root: Path, conversations: tuple[int, ...] = (2001, 2005, 3010)) -> Path:
    for number in conversations:
        write_call(root / "swb1" / f"sw0{number}.sph")
        for side in "AB":
            name = f"sw{number}{side}-ms98-a"
            write_lines(
                root / "swb_ms98_transcriptions" / str(number)[:2] / str(number) / f"{name}-trans.text",
                f"{name}-0001 0.000000 0.500000 [silence]",
                f"{name}-0002 0.500000 1.500000 hi um [laughter-yeah] abs[olute]- [noise] them_1",
                f"{name}-0003 1.500000 2.500000 [laughter] <b_aside> okay <e_aside>",
            )
    return root


def test_switchboard_by_sides(tmp_path: Path) -> None:
    found = imported("switchboard", switchboard(tmp_path / "in"), tmp_path / "out")
    both = found["train"] + found["dev"]
    assert len(both) == 12
    first = next(u for u in both if u.id == "sw02001-B_000050-000150")
    assert first.words == ("HI", "UM", "YEAH", "ABS-", "THEM")
    assert (first.channel, first.begin, first.end, first.speaker) == (1, 0.5, 1.5, "sw02001-B")
    assert not {u.audio for u in found["train"]} & {u.audio for u in found["dev"]}


def test_switchboard_by_persons(tmp_path: Path) -> None:
    root = switchboard(tmp_path / "in")
    write_lines(
        root / "tables" / "conv.tab", "2001,910304, 1044,1035,x", "2005,910304,1044, 1099", "3010,910304,1035,1007"
    )
    found = imported("switchboard", root, tmp_path / "out")
    both = {u.id: u for u in found["train"] + found["dev"]}
    assert both["sw1044-2001A_000050-000150"].speaker == both["sw1044-2005A_000050-000150"].speaker == "sw1044"
    assert len({u.speaker for u in both.values()}) == 4


def test_hub5_in_two_halves(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for name in ("sw_4390", "en_4156"):
        write_call(root / "hub5e_00" / "english" / f"{name}.sph")
    write_lines(
        root / "2000_hub5_eng_eval_tr" / "reference" / "hub5e00.english.000405.stm",
        ";; comment",
        "sw_4390 A sw_4390_A 0.1 1.2 <O,sw,M,sw-M> (%HESITATION) I THINK (UH) SO",
        "en_4156 B en_4156_B 0.5 1.0 <O,en,F,en-F> HE IS <B_ASIDE> A POLICE OFFICER",
        "en_4156 A en_4156_A 0.5 1.0 <O,en,F,en-F> IGNORE_TIME_SEGMENT_IN_SCORING",
    )
    found = imported("switchboard", root, tmp_path / "out")
    assert words(found["test"]) == {"sw_4390-A_000010-000120": "UH I THINK UH SO"}
    assert words(found["test-callhome"]) == {"en_4156-B_000050-000100": "HE IS A POLICE OFFICER"}
    assert found["test-callhome"][0].channel == 1


def test_switchboard_with_something_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="not Switchboard"):
        import_corpus(corpora.load("switchboard"), tmp_path / "empty", tmp_path / "out")
    root = switchboard(tmp_path / "in")
    (root / "swb1" / "sw02005.sph").unlink()
    with pytest.raises(DataError, match=r"sw2005A-ms98-a-trans\.text:2: the audio of conversation 2005"):
        import_corpus(corpora.load("switchboard"), root, tmp_path / "out2")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("hello", "HELLO"),
        ("[laughter-story]", "STORY"),
        ("[it'n/isn't]", "IT'N"),
        ("[lem[guini]-/linguini]", "LEM-"),
        ("-[an]y", "-Y"),
        ("abs[olute]-", "ABS-"),
        ("{yuppiedom}", "YUPPIEDOM"),
        ("them_1's", "THEM'S"),
        ("[vocalized-noise]", ""),
        ("[some-new-mark]", ""),
        ("<E_ASIDE>", ""),
    ],
)
def test_words_of_the_msu_transcripts(raw: str, said: str) -> None:
    assert clean_word(raw) == said
