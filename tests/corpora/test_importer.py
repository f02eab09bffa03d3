"""Each corpus from a tiny folder of the shape of its original."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from corpus_files import write_audio, write_call, write_lines, write_sphere, write_split_files
from roundelay import corpora
from roundelay.corpora import kaldi_dir
from roundelay.corpora.data_directory import Utterance, find_splits, read_split
from roundelay.corpora.importer import import_corpus
from roundelay.corpora.splits import divide_by_speaker, split_name, utterance_id
from roundelay.corpora.switchboard import clean_word
from roundelay.errors import DataError, SettingsError
from roundelay.formats import audio_files
from roundelay.formats.text_tables import write_table


def imported(name: str, source: Path, out: Path) -> dict[str, list[Utterance]]:
    """Import a corpus, and make sure that all its audio can be read and no speaker is on both sides."""
    import_corpus(corpora.load(name), source, out)
    found = {split: read_split(folder) for split, folder in find_splits(out).items()}
    for utterances in found.values():
        for u in utterances:
            samples, _ = audio_files.read(u.audio, channel=u.channel, begin=u.begin, end=u.end)
            assert len(samples) > 100
    training = {u.speaker for u in found.get("train", ())}
    assert (
        not any(u.speaker in training for split, us in found.items() for u in us if split != "train") or name == "yesno"
    )
    return found


def words(utterances: list[Utterance]) -> dict[str, str]:
    return {utterance.id: " ".join(utterance.words) for utterance in utterances}


def test_every_corpus_is_registered_and_told() -> None:
    for name in corpora.MODULES:
        corpus = corpora.load(name)
        assert corpus.name == name
        assert corpus.summary
        assert corpus.licence
        assert set(corpus.default_parts) <= set(corpus.parts)
        for download in corpus.parts.values():
            assert download.url.startswith("https://")
            assert download.sha256 is None or len(bytes.fromhex(download.sha256)) == 32
    with pytest.raises(SettingsError, match="did you mean 'librispeech'"):
        corpora.load("libirspeech")


def an4(root: Path) -> Path:
    people = ["fash", "mgah", "fbbh", "mjwl"]
    noise = np.random.default_rng(0).integers(-999, 999, 4000).astype(np.int16)
    for part, speakers in (("train", people), ("test", ["fcaw"])):
        clstk = "an4_clstk" if part == "train" else "an4test_clstk"
        names = [f"{clstk}/{speaker}/an{251 + i}-{speaker}-b" for i, speaker in enumerate(speakers)]
        for name in names:
            write_sphere(root / "wav" / f"{name}.sph", [noise], rate=16000, coding="pcm10")
        write_lines(root / "etc" / f"an4_{part}.fileids", *names)
        lines = [f"<s> ENTER {'SIX' * (i % 2)} </s> ({name.rpartition('/')[2]})" for i, name in enumerate(names)]
        write_lines(root / "etc" / f"an4_{part}.transcription", *lines)
    write_lines(root / "etc" / "an4.dic", "ENTER EH N T ER", "SIX S IH K S", "ZERO Z IH R OW", "ZERO(2) Z IY R OW")
    write_lines(root / "etc" / "an4.ug.lm", "\\data\\")
    return root


def test_an4(tmp_path: Path) -> None:
    an4(tmp_path / "original" / "an4-b567")
    found = imported("an4", tmp_path / "original", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 3, "dev": 1, "test": 1}
    assert words(found["test"]) == {"fcaw-an251-b": "ENTER"}
    assert words(found["train"] + found["dev"])["mgah-an252-b"] == "ENTER SIX"
    assert "ZERO Z IY R OW\n" in (tmp_path / "out" / "lexicon.txt").read_text()
    assert (tmp_path / "out" / "lm" / "an4.unigram.arpa").is_file()


@pytest.mark.parametrize(
    ("breaking", "what"),
    [
        ("audio", "the audio is not there"),
        ("transcript", "no transcript of 'an251-fash-b'"),
        ("form", r"an4_train.transcription:1: '<s> WORDS </s> \(name\)' is wanted"),
        ("fileids", "not AN4"),
    ],
)
def test_an4_with_something_missing(tmp_path: Path, breaking: str, what: str) -> None:
    root = an4(tmp_path / "an4")
    if breaking == "audio":
        (root / "wav" / "an4_clstk" / "fash" / "an251-fash-b.sph").unlink()
    elif breaking == "fileids":
        (root / "etc" / "an4_train.fileids").unlink()
    else:
        write_lines(root / "etc" / "an4_train.transcription", "ENTER" if breaking == "form" else "<s> A </s> (x)")
    with pytest.raises(DataError, match=what):
        import_corpus(corpora.load("an4"), root, tmp_path / "out")
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_the_an4_pack(corpora: Path, tmp_path: Path) -> None:
    from roundelay.corpora import load

    import_corpus(load("an4"), corpora / "an4", tmp_path / "out")
    found = {name: len(read_split(folder)) for name, folder in find_splits(tmp_path / "out").items()}
    assert found == {"train": 740, "dev": 103, "test": 105}
    assert (tmp_path / "out" / "lexicon.txt").is_file()
    assert (tmp_path / "out" / "lm" / "an4.unigram.arpa").is_file()


def test_fsdd_with_the_ids_of_the_pack(tmp_path: Path, corpora: Path) -> None:
    for name in ("0_george_0", "7_george_49", "3_theo_12", "9_yweweler_5"):
        write_audio(tmp_path / "fsdd-1.0.10" / "recordings" / f"{name}.wav", rate=8000)
    found = imported("fsdd", tmp_path / "fsdd-1.0.10", tmp_path / "out")
    assert words(found["train"]) == {"george-0-00": "ZERO", "george-7-49": "SEVEN"}
    assert words(found["dev"]) == {"theo-3-12": "THREE"}
    assert words(found["test"]) == {"yweweler-9-05": "NINE"}
    for split, utterances in found.items():
        pack = words(read_split(corpora / "fsdd" / split))
        assert words(utterances).items() <= pack.items()


def test_fsdd_with_a_wrong_name(tmp_path: Path) -> None:
    write_audio(tmp_path / "in" / "recordings" / "seven_george_1.wav")
    with pytest.raises(DataError, match=r"seven_george_1\.wav: the name is not digit_speaker_number"):
        import_corpus(corpora.load("fsdd"), tmp_path / "in", tmp_path / "out")


def librispeech(root: Path) -> Path:
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


def test_librispeech_in_any_parts(tmp_path: Path) -> None:
    found = imported("librispeech", librispeech(tmp_path / "in"), tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 4, "dev": 2, "test-other": 2}
    assert words(found["dev"])["1272-134315-0001"] == "AS YOU KNOW"


def test_librispeech_with_something_missing(tmp_path: Path) -> None:
    chapter = librispeech(tmp_path / "in") / "LibriSpeech" / "train-clean-5" / "1088" / "134315"
    (chapter / "1088-134315-0001.flac").rename(chapter / "1088-134315-0009.flac")
    with pytest.raises(DataError, match=r"trans\.txt:2: the audio of '1088-134315-0001' is not there"):
        import_corpus(corpora.load("librispeech"), tmp_path / "in", tmp_path / "out")
    write_audio(chapter / "1088-134315-0001.flac")
    with pytest.raises(DataError, match="no transcript of '1088-134315-0009'"):
        import_corpus(corpora.load("librispeech"), tmp_path / "in", tmp_path / "out")
    with pytest.raises(DataError, match="not LibriSpeech"):
        import_corpus(corpora.load("librispeech"), tmp_path / "out", tmp_path / "out2")


def test_yesno(tmp_path: Path) -> None:
    for i in range(12):
        write_audio(tmp_path / "in" / "waves_yesno" / f"{'_'.join(f'{i:08b}')}.wav", rate=8000)
    found = imported("yesno", tmp_path / "in", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 6, "dev": 2, "test": 4}
    assert words(found["train"])["ken-0_0_0_0_0_1_0_1"] == "NO NO NO NO NO YES NO YES"


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


def fisher(root: Path, calls: tuple[int, ...] = (1, 2, 3, 4)) -> Path:
    for call in calls:
        name = f"fe_03_{call:05d}"
        write_call(root / "fe_03_p1_sph1" / "audio" / "000" / f"{name}.sph")
        write_lines(
            root / "fe_03_p1_tran" / "data" / "trans" / "000" / f"{name}.txt",
            f"# {name}.sph",
            "# Transcribed at the LDC",
            "",
            "0.10 0.90 A: an- so the topic is",
            "1.00 1.90 B: [laughter] oh [noise] yeah",
            "1.95 2.00 A: [laughter]",
            "2.00 2.90 B: (( i do not know ))",
        )
    return root


def test_fisher_by_sides_and_by_persons(tmp_path: Path) -> None:
    found = imported("fisher", fisher(tmp_path / "in"), tmp_path / "out")
    every = {u.id: u for us in found.values() for u in us}
    assert len(every) == 8
    assert set(found) == {"train", "dev", "test"}
    other = every["fe_03_00001-B_000100-000190"]
    assert (other.words, other.channel, other.begin) == (("OH", "YEAH"), 1, 1.0)
    header = "CALL_ID,DATE_TIME,TOPICID,SIG_GRADE,CNV_GRADE,APIN,ASX.DL,APHNUM,APHSET,APHTYP,BPIN,BSX.DL"
    rows = [f"{call:05d},x,y,3,3,{100 + call},m.a,1,2,3,{200 + call % 2},f.a" for call in (1, 2, 3, 4)]
    write_lines(tmp_path / "in" / "fe_03_p1_tran" / "doc" / "fe_03_p1_calldata.tbl", header, *rows)
    found = imported("fisher", tmp_path / "in", tmp_path / "out2")
    assert len({u.speaker for us in found.values() for u in us}) == 6


def test_fisher_with_something_wrong(tmp_path: Path) -> None:
    root = fisher(tmp_path / "in")
    text = root / "fe_03_p1_tran" / "data" / "trans" / "000" / "fe_03_00002.txt"
    text.write_text("# x\n1.0 0.5 A: hello\n")
    with pytest.raises(DataError, match=r"fe_03_00002\.txt:2: an utterance from 1\.0 s to 0\.5 s"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")
    text.write_text("1.0 1.5 C: hello\n")
    with pytest.raises(DataError, match=r"fe_03_00002\.txt:1: 'begin end A: words' is wanted"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")
    (root / "fe_03_p1_sph1" / "audio" / "000" / "fe_03_00001.sph").unlink()
    with pytest.raises(DataError, match=r"the audio of the call \(fe_03_00001\.sph\) is not there"):
        import_corpus(corpora.load("fisher"), root, tmp_path / "out")


def test_kaldi_directories_with_pipes_features_and_alignments(tmp_path: Path) -> None:
    source = tmp_path / "data"
    for split, speakers in (("train", "ab"), ("dev", "c")):
        write_split_files(source / split, *(f"{speaker}-1" for speaker in speakers))
    write_lines(source / "train" / "wav.scp", "a-1 sox audio/a-1.wav -t wav - |", "b-1 cat audio/b-1.wav |")
    matrix = b"\0BFM \x04\x01\0\0\0\x04\x02\0\0\0" + np.array([1.5, -2.0], "<f4").tobytes()
    for split, names in (("train", ["a-1", "b-1"]), ("dev", ["c-1"])):
        (source / f"{split}.ark").write_bytes(b"".join(name.encode() + b" " + matrix for name in names))
        places = [f"{name} {split}.ark:{4 + i * (4 + len(matrix))}" for i, name in enumerate(names)]
        write_lines(source / split / "feats.scp", *places)
    write_lines(source / "lexicon.txt", "HELLO HH AX L OW")
    found = imported("kaldi", source, tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 2, "dev": 1}
    features = dict(kaldi_dir.read_features(tmp_path / "out" / "train"))
    assert features["b-1"].tolist() == [[1.5, -2.0]]
    assert (tmp_path / "out" / "lexicon.txt").read_text() == "HELLO HH AX L OW\n"
    for i, name in ((2, "b-1"), (10, "c-1"), (1, "a-1")):
        (tmp_path / f"ali.{i}.gz").write_bytes(gzip.compress(f"{name} 3 3 {i}\n".encode()))
    assert [(name, ints.tolist()) for name, ints in kaldi_dir.read_alignments(tmp_path)] == [
        ("a-1", [3, 3, 1]),
        ("b-1", [3, 3, 2]),
        ("c-1", [3, 3, 10]),
    ]
    with pytest.raises(DataError, match=r"no ali\.1\.gz"):
        list(kaldi_dir.read_alignments(source))


def test_one_kaldi_directory_is_divided_by_speakers(tmp_path: Path) -> None:
    write_split_files(tmp_path / "in", *(f"{speaker}-{i}" for speaker in "abcdefghij" for i in range(3)))
    found = imported("kaldi", tmp_path / "in", tmp_path / "out")
    assert {name: len(us) for name, us in found.items()} == {"train": 24, "dev": 3, "test": 3}


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


def test_a_folder_with_a_table(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for name in ("ann/one.wav", "ann/two 2.flac", "bob/one.ogg", "cid.mp3"):
        write_audio(source / name)
    rows = ["ann/one.wav\thello there", "ann/two 2.flac\tgood bye", "bob/one.ogg\tyes", "cid.mp3\tno"]
    write_lines(source / "transcripts.tsv", *rows)
    found = imported("folder", source, tmp_path / "out")
    every = {u.id: u for us in found.values() for u in us}
    assert set(every) == {"ann-one", "ann-two_2", "bob-one", "cid-cid"}
    assert every["ann-two_2"].words == ("good", "bye")
    heads = ["path\tspeaker\ttext\tsplit", "ann/one.wav\tx y\thello\ttrain", "ann/two 2.flac\tx y\tbye\ttrain"]
    write_lines(source / "transcripts.tsv", *heads, "bob/one.ogg\tb\tyes\tvalid", "cid.mp3\tc\tno\ttest")
    found = imported("folder", source, tmp_path / "out2")
    assert {name: [u.speaker for u in us] for name, us in found.items()} == {
        "train": ["x_y", "x_y"],
        "dev": ["b"],
        "test": ["c"],
    }


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["a.wav\thello"], r"no transcript of b\.wav, whose audio is there"),
        (["a.wav\thello", "b.wav\thi", "c.wav\tyo"], r"transcripts\.tsv:3: the audio is not there: c\.wav"),
        (["a.wav\thello", "a.wav\thi"], r"transcripts\.tsv:2: a\.wav is already in line 1"),
        (["a.wav"], r"transcripts\.tsv:1: path TAB text"),
        (["path\twords", "a.wav\thello"], r"transcripts\.tsv:1: unknown column 'words'"),
        (["a.wav\thello", "b.wav\thi"], "2 speakers cannot be divided"),
    ],
)
def test_a_folder_with_something_wrong(tmp_path: Path, rows: list[str], what: str) -> None:
    for name in ("a.wav", "b.wav"):
        write_audio(tmp_path / "in" / name)
    write_lines(tmp_path / "in" / "transcripts.tsv", *rows)
    with pytest.raises(DataError, match=what):
        import_corpus(corpora.load("folder"), tmp_path / "in", tmp_path / "out")


def test_a_second_import_does_nothing_and_another_is_refused(tmp_path: Path) -> None:
    librispeech(tmp_path / "in")
    corpus, out = corpora.load("librispeech"), tmp_path / "out"
    import_corpus(corpus, tmp_path / "in", out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    import_corpus(corpus, tmp_path / "in", out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    with pytest.raises(DataError, match="contains another corpus"):
        import_corpus(corpora.load("kaldi"), tmp_path / "in", out)
    with pytest.raises(DataError, match="contains other files"):
        import_corpus(corpus, tmp_path / "in", tmp_path / "in" / "LibriSpeech")
    with pytest.raises(DataError, match="no such folder"):
        import_corpus(corpus, tmp_path / "gone", tmp_path / "out2")
    with pytest.raises(DataError, match="into its own folder"):
        import_corpus(corpus, tmp_path / "in", tmp_path / "in")


def test_an_interrupted_import_is_no_corpus_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    librispeech(tmp_path / "in")
    corpus, out = corpora.load("librispeech"), tmp_path / "out"
    calls = []

    def interrupted(path: Path, rows: object) -> None:
        calls.append(path.name)
        if len(calls) == 3:  # the first split's wav.scp
            raise KeyboardInterrupt
        write_table(path, rows)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr("roundelay.corpora.data_directory.write_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        import_corpus(corpus, tmp_path / "in", out)
    with pytest.raises(DataError, match="no corpus here"):
        find_splits(out)
    monkeypatch.undo()
    import_corpus(corpus, tmp_path / "in", out)
    assert set(find_splits(out)) == {"train", "dev", "test-other"}


def test_speakers_are_divided_in_proportion_whatever_their_order() -> None:
    def spoken(count: int) -> list[Utterance]:
        return [Utterance(f"s{i}-{j}", Path("x"), f"s{i}", ("A",)) for i in range(count) for j in range(5)]

    divided = divide_by_speaker(spoken(100))
    assert {name: len(us) for name, us in divided.items()} == {"train": 400, "dev": 50, "test": 50}
    again = divide_by_speaker(reversed(spoken(100)))
    assert all({u.id for u in divided[name]} == {u.id for u in again[name]} for name in divided)
    assert {name: len(us) for name, us in divide_by_speaker(spoken(3)).items()} == {"train": 5, "dev": 5, "test": 5}


def test_names_of_parts_and_utterances() -> None:
    parts = ("train-clean-5", "dev-clean", "validation", "test-clean", "test-other", "eval")
    assert [split_name(part) for part in parts] == ["train", "dev", "dev", "test", "test-other", "eval"]
    assert utterance_id("ann", "ann/one 1") == "ann-one_1"
    assert utterance_id("bob", "one") == "bob-one"
