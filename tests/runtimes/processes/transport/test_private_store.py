"""The run's own store refuses whoever does not know its secret, and whatever was changed on its way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from roundelay.runtimes.processes.transport import private_store
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, connect_store, start_store
from roundelay.runtimes.processes.transport.private_store import (
    CODE_BYTES,
    MAGIC,
    NONCE_BYTES,
    Handshake,
    NoStore,
    Refused,
    Seal,
    StoreGone,
)

SECRET = bytes(range(32))


@pytest.fixture
def served() -> Iterator[tuple[KeyValueStore, int]]:
    store, port = start_store("127.0.0.1", secret=SECRET)
    yield store, port
    store.close()


def test_without_a_host_it_listens_nowhere() -> None:
    store, port = start_store(secret=SECRET)
    assert port == 0
    with store.lend() as inherited:
        assert inherited.family == socket.AF_UNIX
    store.close()


def test_another_secret_is_refused(served: tuple[KeyValueStore, int]) -> None:
    store, port = served
    for wrong in (b"", b"guess", bytes(32)):
        with pytest.raises(Refused, match="another secret"):
            connect_store("127.0.0.1", port, secret=wrong)
    connect_store("127.0.0.1", port, secret=SECRET).set("key", 1)
    assert store.get("key") == 1


def test_a_store_that_does_not_know_the_secret_is_not_believed() -> None:
    def pretend() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(MAGIC + os.urandom(2 * NONCE_BYTES))
            connection.recv(NONCE_BYTES + CODE_BYTES)
            connection.sendall(bytes(CODE_BYTES))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(Refused):
            connect_store("127.0.0.1", listener.getsockname()[1], secret=SECRET)
        thread.join()


def test_what_is_no_store_is_found_out() -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NoStore, match="not Roundelay"):
            connect_store("127.0.0.1", listener.getsockname()[1], secret=SECRET)
        thread.join()


def test_a_message_is_bound_to_its_number_its_direction_and_its_run() -> None:
    handshake = Handshake(SECRET, b"run and server", b"client")
    mine, _ = handshake.seals("client", "server")
    first, second = (content + mine.code(content) for content in (b"set a", b"set a"))

    def receiver(shaken: Handshake = handshake) -> Seal:
        return shaken.seals("server", "client")[1]

    theirs = receiver()
    assert theirs.open(first) == theirs.open(second)[:5] == b"set a"
    refused = {
        "repeated": (receiver(), [first, first]),
        "out of order": (receiver(), [second]),
        "another key": (receiver(), [b"set b" + first[5:]]),
        "another run": (receiver(Handshake(SECRET, b"another run", b"client")), [first]),
        "sent back": (handshake.seals("client", "server")[1], [first]),
        "too short": (receiver(), [b"set"]),
    }
    for seal, messages in refused.values():
        *before, last = messages
        for message in before:
            seal.open(message)
        with pytest.raises(Refused):
            seal.open(last)


def test_nonsense_from_strangers_leaves_the_store_as_it_is(
    served: tuple[KeyValueStore, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, port = served
    monkeypatch.setattr(private_store, "MAX_UNPROVEN", 4)
    store.set("key", 1)
    waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    for size, connection in enumerate(waiting):
        connection.sendall(os.urandom(size * size))
    other = connect_store("127.0.0.1", port, secret=SECRET)
    assert other.get("key") == 1
    assert other.add("count", 2) == 2
    for connection in waiting:
        connection.close()


def test_clients_notice_the_end_of_the_store(served: tuple[KeyValueStore, int]) -> None:
    store, port = served
    inherited, other = store.clone(), connect_store("127.0.0.1", port, secret=SECRET)
    store.close()
    for client in (inherited, other):
        with pytest.raises(StoreGone):
            client.get("key")
        with pytest.raises(StoreGone):
            client.clone()


def test_long_values_and_waits(served: tuple[KeyValueStore, int]) -> None:
    store, port = served
    other = connect_store("127.0.0.1", port, secret=SECRET)
    other.set("long", "x" * 3_000_000)
    assert store.get("long") == other.get("long") == "x" * 3_000_000
    with pytest.raises(TimeoutError):
        store.clone().wait("never", 0.05)
    assert store.present(["long", "never"]) == {"long"}
