"""The run's own store of bytes: a thread of the launcher keeps it, for the run's learners and launchers alone.

On one host a learner inherits its connection from the launcher and asks over it for more: there is no port, and no
file, that a stranger could connect to.  Between hosts the store listens on a port.  Both sides prove that they know the
run's secret before either believes anything.  From then on every message has a code (HMAC) over its direction, its
number and its content, so that none can be made up, changed, repeated, or moved to another key or another run.
Nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch.distributed

from roundelay.errors import RoundelayError

c10d: Any = torch.distributed  # its type information is incomplete
StoreGone: type[Exception] = c10d.DistError
MAGIC = b"roundelay store 1\n"
NONCE_BYTES, CODE_BYTES = 32, 32
LENGTH = struct.Struct("<I")  # of what follows
REQUEST = struct.Struct("<BqH")  # operation, number, length of the key; the key and the value follow
CHUNK = 1 << 16
LARGEST = 1 << 28
HANDSHAKE_SECONDS = 10.0
MAX_UNPROVEN = 64
"""How many connections may be waiting to prove the secret; the oldest is closed for one more."""
logger = logging.getLogger(__name__)


class Refused(RoundelayError):
    """The other side of a connection does not know the run's secret."""


class NoStore(RoundelayError):
    """What answers is not a store of Roundelay."""


class StoreOperation(IntEnum):
    """What a client asks for."""

    SET = 1
    GET = 2
    PRESENT = 3
    ADD = 4
    DELETE = 5
    APPEND = 6
    SETDEFAULT = 7
    WAIT = 8
    CONNECT = 9


# -- what both sides compute ----------------------------------------------------------------------------------------


class Handshake:
    """Proofs and keys of one connection, from the secret and from a random number of each side."""

    def __init__(self, secret: bytes, of_server: bytes, of_client: bytes) -> None:
        self._secret, self._numbers = secret, of_server + of_client

    def derive(self, purpose: str) -> bytes:
        """Return the proof, or the key, for one purpose."""
        return hmac.digest(self._secret, purpose.encode() + b"\0" + self._numbers, "sha256")

    def seals(self, mine: str, theirs: str) -> tuple[Seal, Seal]:
        """Return the seals of what we send and of what we receive."""
        return Seal(self.derive(f"messages of the {mine}")), Seal(self.derive(f"messages of the {theirs}"))


class Seal:
    """The codes of one direction of a connection, each over a message's number and its content."""

    def __init__(self, key: bytes) -> None:
        self._key, self._count = key, 0

    def code(self, content: bytes) -> bytes:
        """Return the code of the next message."""
        self._count += 1
        return hmac.digest(self._key, self._count.to_bytes(8, "little") + content, "sha256")

    def open(self, message: bytes) -> bytes:
        """Return the content of the next message; raise `Refused` unless its sender has sent it so."""
        content = message[:-CODE_BYTES]
        if not hmac.compare_digest(self.code(content), message[-CODE_BYTES:]):
            raise Refused("the store: a message came that was made up or changed on its way")
        return content


def _frame(content: bytes, seal: Seal | None) -> bytes:
    """Return a message with its length before it and its code behind it."""
    code = seal.code(content) if seal is not None else b""
    return LENGTH.pack(len(content) + len(code)) + content + code


def _run_secret(secret: bytes, run: bytes) -> bytes:
    return hmac.digest(secret, b"run\0" + run, "sha256")


# -- a client -------------------------------------------------------------------------------------------------------


class SocketClient:
    """A client of a `StoreServer`; a blocking call occupies it."""

    def __init__(
        self,
        connection: socket.socket,
        secret: bytes,
        *,
        seals: tuple[Seal, Seal] | None = None,
        another: Callable[[], SocketClient] | None = None,
    ) -> None:
        self.secret = secret
        """What all clients of this run know, and nobody else."""
        self._socket, self._another = connection, another
        self._mine: Seal | None
        self._theirs: Seal | None
        self._mine, self._theirs = seals or (None, None)
        self._lock = threading.Lock()
        self.server: threading.Thread | None = None
        """The server's thread, if this is its first client."""
        weakref.finalize(self, connection.close)

    def clone(self) -> SocketClient:
        """Make a client for another thread."""
        if self._another is None:
            return SocketClient(self.lend(), self.secret)
        try:
            return self._another()
        except OSError as error:
            raise _gone(error) from error

    def lend(self) -> socket.socket:
        """Return a new connection to a store on this host; a process may inherit it."""
        with self._lock:
            try:
                self._send(StoreOperation.CONNECT, "", b"", 0)
                _, files, _, _ = socket.recv_fds(self._socket, 1, 1)
            except OSError as error:
                raise _gone(error) from error
        if not files:
            raise StoreGone("its process has closed the connection")
        return socket.socket(fileno=files[0])

    def set(self, key: str, value: bytes) -> None:
        """Write a value; on return it is visible to all clients."""
        self._ask(StoreOperation.SET, key, value)

    def get(self, key: str) -> bytes | None:
        """Return a value, if there is one."""
        reply = self._ask(StoreOperation.GET, key)
        return reply[1:] if reply else None

    def present(self, keys: Sequence[str]) -> list[bool]:
        """Return of each key whether it is there."""
        return [there == 1 for there in self._ask(StoreOperation.PRESENT, "", "\n".join(keys).encode())]

    def add(self, key: str, amount: int) -> int:
        """Add to a number; return the sum."""
        return int(self._ask(StoreOperation.ADD, key, number=amount))

    def delete(self, key: str) -> None:
        """Delete a key, if there is one."""
        self._ask(StoreOperation.DELETE, key)

    def append(self, key: str, value: bytes) -> None:
        """Append to a value; return without waiting for the store."""
        with self._lock:
            try:
                self._send(StoreOperation.APPEND, key, value, 0)
            except OSError as error:
                raise _gone(error) from error

    def setdefault(self, key: str, value: bytes) -> bytes:
        """Write a value if there is none; return the one that is there."""
        return self._ask(StoreOperation.SETDEFAULT, key, value)

    def wait(self, key: str, timeout_seconds: float | None) -> None:
        """Block until there is such a key; after a `TimeoutError` this client cannot be used any more."""
        try:
            self._socket.settimeout(timeout_seconds)
            self._ask(StoreOperation.WAIT, key)
            self._socket.settimeout(None)
        except TimeoutError:
            raise
        except OSError as error:  # closed by another thread, as at the end of a program
            raise _gone(error) from error

    def close(self) -> None:
        """Close the connection; if it is the first one, return when the server has closed all others."""
        self._socket.close()
        if self.server is not None:
            self.server.join()

    def _ask(self, operation: StoreOperation, key: str, value: bytes = b"", number: int = 0) -> bytes:
        with self._lock:
            try:
                self._send(operation, key, value, number)
                data, whole = b"", LENGTH.size
                while len(data) < whole:
                    more = self._socket.recv(max(CHUNK, whole - len(data)))
                    if not more:
                        raise StoreGone("its process has closed the connection")
                    data += more
                    if whole == LENGTH.size and len(data) >= LENGTH.size:
                        whole += LENGTH.unpack_from(data)[0]
            except OSError as error:
                raise _gone(error) from error
            reply = data[LENGTH.size :]
            return self._theirs.open(reply) if self._theirs is not None else reply

    def _send(self, operation: StoreOperation, key: str, value: bytes, number: int) -> None:
        name = key.encode()
        self._socket.sendall(_frame(REQUEST.pack(operation, number, len(name)) + name + value, self._mine))


def _gone(error: OSError) -> Exception:
    """Return what to raise for an error of a connection; a wait that took too long is no end of the store."""
    if isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT:
        return error
    return StoreGone(f"the connection failed: {error.strerror or error}")


def connect(host: str, port: int, secret: bytes, *, silence_seconds: float) -> SocketClient:
    """Connect to a store on a port, which fails after so many seconds without a sign of its host.

    Raise `Refused` if the store has another secret, or cannot prove that it has ours; `NoStore` if it is none.
    """
    connection = socket.create_connection((host, port), timeout=HANDSHAKE_SECONDS)
    try:
        greeting = _receive(connection, len(MAGIC) + 2 * NONCE_BYTES)
        if not greeting.startswith(MAGIC):
            raise NoStore(f"{host}:{port}: a program that is not Roundelay answers")
        run, number = greeting[len(MAGIC) : -NONCE_BYTES], greeting[-NONCE_BYTES:]
        mine = os.urandom(NONCE_BYTES)
        handshake = Handshake(secret, run + number, mine)
        connection.sendall(mine + handshake.derive("client"))
        if not hmac.compare_digest(_receive(connection, CODE_BYTES), handshake.derive("server")):
            raise Refused(f"{host}:{port}: the store has another secret")
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise NoStore(f"{host}:{port}: a program that is not Roundelay is there") from error
        raise
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit_silence(connection, silence_seconds)
    return SocketClient(
        connection,
        _run_secret(secret, run),
        seals=handshake.seals("client", "server"),
        another=lambda: connect(host, port, secret, silence_seconds=silence_seconds),
    )


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes, or fewer if the other side closes the connection before."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while len(data) < size and (more := connection.recv(size - len(data))):
            data += more
    return data


def limit_silence(connection: socket.socket, seconds: float) -> None:
    """Let a connection fail after so many seconds without a sign of the other host, which may vanish unclosed."""
    third = max(1, int(seconds / 3))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, third)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


# -- the server -----------------------------------------------------------------------------------------------------


class StoreServer:
    """A thread that keeps the values and answers its clients in the order in which they ask."""

    def __init__(self, secret: bytes, listener: socket.socket | None, first: socket.socket) -> None:
        self.run = os.urandom(NONCE_BYTES)
        """A random number that identifies this run."""
        self._secret, self._listener, self._first = secret, listener, first
        self._values: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, list[_Connection]] = defaultdict(list)
        self._unproven: dict[_Connection, float] = {}  # since when; oldest first
        self._num_refused = 0
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._add(_Connection(first, proven=True))
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve until the first client is closed."""
        try:
            while not self._ended:
                for key, events in self._selector.select():
                    if key.data is None:
                        self._accept()
                    elif events & selectors.EVENT_WRITE:
                        self._flush(key.data)
                    else:
                        self._read(key.data)
        finally:
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not self._first:
                    key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
            self._selector.close()
            self._first.close()

    # -- connections --------------------------------------------------------------------------------------------

    def _add(self, connection: _Connection) -> None:
        connection.socket.setblocking(False)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection) -> None:
        self._unproven.pop(connection, None)
        if connection.socket is self._first:
            self._ended = True
        elif connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _accept(self) -> None:
        """Greet a client that has come by the port, which has to prove the secret."""
        assert self._listener is not None
        with contextlib.suppress(OSError):  # it has gone again
            connection = _Connection(self._listener.accept()[0], proven=False)
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            now = time.monotonic()
            for other, since in list(self._unproven.items()):
                if len(self._unproven) >= MAX_UNPROVEN or now - since > HANDSHAKE_SECONDS:
                    self._drop(other)
            self._unproven[connection] = now
            self._add(connection)
            connection.number = os.urandom(NONCE_BYTES)
            self._send(connection, MAGIC + self.run + connection.number)

    def _prove(self, connection: _Connection) -> bool:
        """Look at a client's proof, if it has come; return whether the connection may be used."""
        buffer = connection.buffer
        if len(buffer) < NONCE_BYTES + CODE_BYTES:
            return False
        theirs, proof = bytes(buffer[:NONCE_BYTES]), bytes(buffer[NONCE_BYTES : NONCE_BYTES + CODE_BYTES])
        del buffer[: NONCE_BYTES + CODE_BYTES]
        handshake = Handshake(self._secret, self.run + connection.number, theirs)
        if not hmac.compare_digest(proof, handshake.derive("client")):
            self._refuse(connection)
            return False
        del self._unproven[connection]
        connection.proven, (connection.mine, connection.theirs) = True, handshake.seals("server", "client")
        self._send(connection, handshake.derive("server"))
        return True

    def _refuse(self, connection: _Connection) -> None:
        self._num_refused += 1
        if self._num_refused <= 10:  # a stranger must not fill our log
            with contextlib.suppress(OSError):
                logger.warning("%s was refused: it has not the token of this run", connection.socket.getpeername()[0])
        self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.buffer += data
        if not data:
            self._drop(connection)
        elif connection.proven or self._prove(connection):
            try:
                while (content := connection.take()) is not None:
                    self._answer(connection, content)
            except (Refused, ValueError, struct.error, OSError) as error:  # it may have gone after it asked
                logger.warning("a connection to the store was closed: %s", error)
                self._drop(connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        connection.outgoing += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        """Send as much as the connection takes."""
        if connection.socket.fileno() < 0:
            return
        try:
            sent = connection.socket.send(connection.outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        del connection.outgoing[:sent]
        if bool(connection.outgoing) != connection.blocked:
            connection.blocked = not connection.blocked
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.blocked else 0)
            self._selector.modify(connection.socket, events, connection)

    # -- operations ---------------------------------------------------------------------------------------------

    def _answer(self, connection: _Connection, content: bytes) -> None:
        operation, number, length = REQUEST.unpack_from(content)
        key, value = content[REQUEST.size : REQUEST.size + length], content[REQUEST.size + length :]
        if operation == StoreOperation.APPEND:
            self._write(key, self._values.get(key, b"") + value)
        elif operation == StoreOperation.WAIT and key not in self._values:
            self._waiting[key].append(connection)
        elif operation == StoreOperation.CONNECT:
            self._lend(connection)
        else:
            self._reply(connection, self._result(operation, key, value, number))

    def _result(self, operation: int, key: bytes, value: bytes, number: int) -> bytes:
        values = self._values
        if operation == StoreOperation.ADD:
            total = b"%d" % (int(values.get(key, b"0")) + number)
            self._write(key, total)
            return total
        if operation == StoreOperation.PRESENT:
            return bytes(name in values for name in value.split(b"\n"))
        if operation == StoreOperation.GET:
            return b"=" + values[key] if key in values else b""
        if operation == StoreOperation.SETDEFAULT:
            if key not in values:
                self._write(key, value)
            return values[key]
        if operation == StoreOperation.SET:
            self._write(key, value)
        elif operation == StoreOperation.DELETE:
            values.pop(key, None)
        elif operation != StoreOperation.WAIT:
            raise ValueError(f"operation {operation} is not known")
        return b""

    def _write(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        for connection in self._waiting.pop(key, ()) if self._waiting else ():
            self._reply(connection, b"")

    def _reply(self, connection: _Connection, content: bytes) -> None:
        self._send(connection, _frame(content, connection.mine))

    def _lend(self, connection: _Connection) -> None:
        """Make a further connection for a process of this host."""
        if connection.mine is not None:
            raise ValueError("only a process of this host can be given a connection")
        ours, theirs = socket.socketpair()
        self._add(_Connection(ours, proven=True))
        with theirs:
            socket.send_fds(connection.socket, [b"+"], [theirs.fileno()])


def start_server(secret: bytes, listener: socket.socket | None) -> SocketClient:
    """Keep a store in a thread of this process, until the client that is returned is closed or forgotten."""
    ours, theirs = socket.socketpair()
    server = StoreServer(secret, listener, ours)
    client = SocketClient(theirs, secret if listener is None else _run_secret(secret, server.run))
    client.server = threading.Thread(target=server.serve, name="store", daemon=True)
    client.server.start()
    return client


class _Connection:
    """A client as the server sees it."""

    def __init__(self, connection: socket.socket, *, proven: bool) -> None:
        self.socket, self.proven = connection, proven
        self.number = b""
        self.mine: Seal | None = None
        self.theirs: Seal | None = None
        self.buffer, self.outgoing = bytearray(), bytearray()
        self.blocked = False

    def take(self) -> bytes | None:
        """Return the next request, if all of it has come."""
        if len(self.buffer) < LENGTH.size:
            return None
        whole = LENGTH.size + LENGTH.unpack_from(self.buffer)[0]
        if whole > LARGEST:
            raise ValueError(f"a message of {whole} bytes is too long")
        if len(self.buffer) < whole:
            return None
        message = bytes(self.buffer[LENGTH.size : whole])
        del self.buffer[:whole]
        return self.theirs.open(message) if self.theirs is not None else message
