"""Downloads from a real server on loopback, that can be told to break off."""

from __future__ import annotations

import hashlib
import http.server
import json
import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundelay.corpora.download import LOCK, download_file
from roundelay.corpora.importer import Download
from roundelay.errors import DataError

BODY = bytes(range(256)) * 4000
SUM = hashlib.sha256(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves one file; knows ranges; ``stingy`` answers break off after so many bytes."""

    body = BODY
    stingy: list[int]
    ranges = True
    status = 200
    seen: list[str | None]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a client has gone."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/files/corpus.tar.gz"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.seen.append(asked)
        body, begin = self.server.body, 0
        tag = f'"{hashlib.sha256(body).hexdigest()[:8]}"'
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        if asked and self.server.ranges and self.headers.get("If-Range") in (None, tag):
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        most = self.server.stingy.pop(0) if self.server.stingy else len(body)
        self.wfile.write(body[begin : begin + most])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.stingy, running.seen = [], []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_file_is_fetched_checked_and_not_fetched_again(server: Server, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    path = download_file(Download(server.url, SUM), tmp_path / "new", lambda done, total: told.append((done, total)))
    assert path == tmp_path / "new" / "corpus.tar.gz"
    assert path.read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert download_file(Download(server.url, SUM), tmp_path / "new") == path
    assert server.seen == [None]
    assert sorted(p.name for p in path.parent.iterdir()) == ["corpus.tar.gz", LOCK]


def test_a_connection_that_breaks_off_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.stingy = [300_000, 200_000]
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY
    assert server.seen == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_run_goes_on_where_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.stingy = [100_000, 1000, 1000, 1000]
    with pytest.raises(DataError, match=r"stopped after 103000 bytes .* run the same command to continue"):
        download_file(Download(server.url, SUM), tmp_path)
    assert not (tmp_path / "corpus.tar.gz").exists()
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY
    assert server.seen[-1] == "bytes=103000-"


def test_a_file_that_has_changed_meanwhile_is_fetched_from_its_start(server: Server, tmp_path: Path) -> None:
    server.stingy = [100_000, 0, 0, 0]
    with pytest.raises(DataError):
        download_file(Download(server.url), tmp_path)
    server.body = BODY[::-1]
    assert download_file(Download(server.url), tmp_path).read_bytes() == BODY[::-1]


def test_a_server_without_ranges_sends_all_of_it_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.stingy = False, [100_000]
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY


def test_what_was_already_whole_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tar.gz.part").write_bytes(BODY)
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY


def test_a_longer_rest_of_something_else_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "corpus.tar.gz.part").write_bytes(BODY + b"more")
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"corpus\.tar\.gz: its sha256 is {SUM}, not 00"):
        download_file(Download(server.url, "00" * 32), tmp_path)
    assert not (tmp_path / "corpus.tar.gz").exists()
    assert not (tmp_path / "corpus.tar.gz.part").exists()


def test_a_file_that_was_damaged_later_is_found(server: Server, tmp_path: Path) -> None:
    download_file(Download(server.url, SUM), tmp_path).write_bytes(BODY[:-1])
    with pytest.raises(DataError, match="remove the file and download it again"):
        download_file(Download(server.url, SUM), tmp_path)


def test_an_unknown_checksum_is_noted_and_held_to(server: Server, tmp_path: Path) -> None:
    path = download_file(Download(server.url), tmp_path)
    noted = json.loads((tmp_path / LOCK).read_text())["corpus.tar.gz"]
    assert noted == {"url": server.url, "sha256": SUM, "bytes": str(len(BODY))}
    path.unlink()
    server.body = BODY[::-1]
    with pytest.raises(DataError, match=f"not {SUM}"):
        download_file(Download(server.url), tmp_path)
    (tmp_path / LOCK).write_text("nonsense")
    with pytest.raises(DataError, match=rf"{LOCK}: damaged"):
        download_file(Download(server.url), tmp_path)


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (503, 4)])
def test_what_the_server_answers_is_told(server: Server, tmp_path: Path, status: int, times: int) -> None:
    server.status = status
    with pytest.raises(DataError, match=rf"corpus\.tar\.gz: .*{status}"):
        download_file(Download(server.url), tmp_path)
    assert len(server.seen) == times


def test_no_server_and_no_web_address(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match="only http and https"):
        download_file(Download("file:///etc/passwd"), tmp_path)
    url = server.url.replace(str(server.server_address[1]), "9")
    with pytest.raises(DataError, match="stopped after 0 bytes"):
        download_file(Download(url), tmp_path)


def test_a_full_disk_is_named(server: Server, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(DataError, match=r"corpus\.tar\.gz\.part: cannot be written: File too large"):
            download_file(Download(server.url, SUM), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not (tmp_path / "corpus.tar.gz").exists()
    assert download_file(Download(server.url, SUM), tmp_path).read_bytes() == BODY
