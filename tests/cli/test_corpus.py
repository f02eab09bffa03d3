"""``roundelay corpus``."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import call
from corpus_files import write_audio, write_lines, write_split_files


def roundelay(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = call(*map(str, arguments))
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_list_names_every_corpus_and_how_to_get_it() -> None:
    lines = roundelay("corpus", "list", "--wide").stdout.splitlines()
    assert [line.split()[0] for line in lines][2:5] == ["synthetic", "an4", "fsdd"]
    found = json.loads(roundelay("corpus", "list", "--json").stdout)["corpora"]
    assert {entry["name"] for entry in found} <= {line.split()[0] for line in lines}
    libri = next(entry for entry in found if entry["name"] == "librispeech")
    assert libri["parts"]["dev-clean"]["sha256"].startswith("76f87d09")


def test_synth_then_check(tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader", reason="the extra 'synthetic' is not installed")
    out = tmp_path / "corpus"
    made = json.loads(roundelay("corpus", "synth", "--hours", "0.005", "--out", out, "--json").stdout)
    assert made["splits"]["train"]["utterances"] >= 4
    assert "utterances" in roundelay("corpus", "synth", "--hours", "0.005", "--out", out).stdout
    report = json.loads(roundelay("corpus", "check", out, "--json").stdout)
    assert report["errors"] == []
    assert report["splits"]["train"]["utterances"] == made["splits"]["train"]["utterances"]
    done = roundelay("corpus", "synth", "--hours", "1", "--out", out, status=2)
    assert done.stderr.startswith(f"roundelay: {out}: contains a synthetic corpus")


def test_import_and_check(tmp_path: Path) -> None:
    write_split_files(tmp_path / "in" / "train", "a-1", "b-1")
    write_split_files(tmp_path / "in" / "test", "c-1")
    done = json.loads(
        roundelay("corpus", "import", "kaldi", tmp_path / "in", "--out", tmp_path / "out", "--json").stdout
    )
    assert done["splits"] == {"train": {"utterances": 2, "speakers": 2}, "test": {"utterances": 1, "speakers": 1}}
    assert "train" in roundelay("corpus", "check", tmp_path / "out", "--headers-only").stdout


def test_errors_are_one_line_with_status_2(tmp_path: Path) -> None:
    def complaint(*arguments: str | Path) -> str:
        (line,) = roundelay("corpus", *arguments, status=2).stderr.splitlines()
        return line

    assert "unknown corpus 'an5'; did you mean 'an4'?" in complaint("import", "an5", tmp_path, "--out", tmp_path / "o")
    assert "not AN4" in complaint("import", "an4", tmp_path, "--out", tmp_path / "o")
    assert "cannot be downloaded (LDC" in complaint("fetch", "fisher", "--out", tmp_path / "o")
    assert "no part 'dev-claen'; did you mean 'dev-clean'?" in complaint(
        "fetch", "librispeech", "--part", "dev-claen", "--out", tmp_path / "o"
    )
    assert "no corpus here" in complaint("check", tmp_path)
    assert "hours must be more than 0" in complaint("synth", "--hours", "0", "--out", tmp_path / "o")


def test_check_lists_what_is_wrong_and_fails(tmp_path: Path) -> None:
    split = write_split_files(tmp_path, "a-1", "b-1")
    (split / "audio" / "a-1.wav").write_bytes(b"")
    done = roundelay("corpus", "check", tmp_path, status=2)
    assert "error: utterance 'a-1': " in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"roundelay: {tmp_path}: 1 errors")
    done = roundelay("corpus", "check", tmp_path, "--json", status=2)
    assert len(json.loads(done.stdout)["errors"]) == 1


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """Serve tiny archives of Mini LibriSpeech on loopback."""
    served = tmp_path / "served"
    served.mkdir()
    for part, speaker in (("train-clean-5", "1088"), ("dev-clean-2", "1272")):
        chapter = tmp_path / "made" / "LibriSpeech" / part / speaker / "1"
        write_audio(chapter / f"{speaker}-1-0000.flac")
        write_lines(chapter / f"{speaker}-1.trans.txt", f"{speaker}-1-0000 HELLO")
        with tarfile.open(served / f"{part}.tar.gz", "w:gz") as packed:
            packed.add(tmp_path / "made" / "LibriSpeech" / part, f"LibriSpeech/{part}")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_fetch_unpacks_and_imports_and_takes_more_parts_later(tmp_path: Path, mirror: str) -> None:
    out = tmp_path / "out"

    def fetched(part: str) -> dict[str, dict[str, int]]:
        done = roundelay("corpus", "fetch", "librispeech", "--part", part, "--mirror", mirror, "--out", out, "--json")
        found: dict[str, dict[str, int]] = json.loads(done.stdout)["splits"]
        return found

    assert fetched("train-clean-5") == {"train": {"utterances": 1, "speakers": 1}}
    assert set(fetched("dev-clean-2")) == {"train", "dev"}
    assert set(fetched("dev-clean-2")) == {"train", "dev"}
    assert (out / "train" / "wav.scp").read_text().split()[1].startswith("original/train-clean-5/LibriSpeech/")
    done = roundelay(
        "corpus", "fetch", "librispeech", "--part", "dev-clean", "--mirror", mirror, "--out", out, status=2
    )
    assert "404" in done.stderr
