"""The store that learners agree by."""

from __future__ import annotations

import os

from roundelay.runtimes.processes.transport.key_value_store import (
    _limit_silence,
    connect_store,
    start_store,
    torch_message,
)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_limiting_silence_leaves_no_file_open() -> None:
    before = open_files()
    for _ in range(5):
        _limit_silence("10.0.0.1", 1, 5.0)
    assert open_files() == before


def test_a_client_per_thread() -> None:
    store, port = start_store("127.0.0.1")
    one, other = connect_store("127.0.0.1", port), connect_store("127.0.0.1", port).clone()
    one.set("who", {"rank": 1})
    assert other.get("who") == store.get("who") == {"rank": 1}
    assert one.setdefault("first", "one") == "one"
    assert other.setdefault("first", "other") == "one"


def test_what_was_written_is_there_for_all() -> None:
    store, port = start_store("127.0.0.1")
    one, other = connect_store("127.0.0.1", port), connect_store("127.0.0.1", port)
    for number in range(2000):  # torch alone: one in 300 is not there yet
        one.set(f"result/{number}", number)
        assert other.get(f"result/{number}") == number
    del store


def test_torch_in_one_line() -> None:
    gloo = (
        "[/src/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:36770. This is typically caused by this or that."
    )
    assert torch_message(RuntimeError(gloo + "\nand more")) == "Connection closed by peer [10.0.0.1]:36770"
    assert torch_message(RuntimeError()) == "RuntimeError"
