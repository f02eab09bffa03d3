"""The store that learners agree by."""

from __future__ import annotations

import threading

from roundelay.runtimes.processes.transport.key_value_store import (
    connect_store,
    start_store,
    torch_message,
)


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


def test_the_first_writer_of_a_key_decides() -> None:
    store, _ = start_store("127.0.0.1")
    assert store.setdefault("plan", {"size": 2}) == {"size": 2}
    assert store.clone().setdefault("plan", {"size": 3}) == {"size": 2}
    assert store.setdefault("nothing", None) is None
    assert store.has("nothing")


def test_missing_keys() -> None:
    store, _ = start_store("127.0.0.1")
    assert store.get("x") is None
    assert store.log("x") == ""
    assert store.add("x", 0) == 0
    store.delete("y")
    store.set("y", 1)
    store.delete("y")
    assert not store.has("y")


def test_prefixes_separate_keys_also_of_clones() -> None:
    store, _ = start_store("127.0.0.1")
    one, other = store.with_prefix("one"), store.with_prefix("other")
    one.set("key", 1)
    assert other.get("key") is None
    assert one.clone().get("key") == 1
    assert one.with_prefix("inner").get("key") is None


def test_waiting_for_a_key_occupies_one_client_only() -> None:
    store, _ = start_store("127.0.0.1")
    waiting = store.clone()
    thread = threading.Thread(target=waiting.wait, args=("ready",))
    thread.start()
    store.append("log", "a ")
    store.append("log", "b ")
    store.set("ready", True)
    thread.join(5)
    assert not thread.is_alive()
    assert store.log("log") == "a b "
