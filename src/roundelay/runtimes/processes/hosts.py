"""Several hosts: each runs its own launcher; the first one hosts the store for all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.entry_point import ErrorReport
from roundelay.runtimes.processes.environment import local_address
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, connect_store, start_store
from roundelay.runtimes.processes.transport.private_store import NoStore, Refused

POLL_SECONDS = 0.1
CLOSE_SECONDS = 10.0  # how long the first host waits for others that still read results
FAIL_SECONDS = 2.0  # or why the run has failed


@dataclass(frozen=True)
class Hosts:
    """The rendezvous of several launchers, one per host."""

    rendezvous: str
    """``HOST:PORT``; HOST is an address of the first host."""
    count: int
    number: int | None = None
    """Our number from 0; by default the host with that address is 0, others count in the order of arrival."""
    timeout_seconds: float = 120.0
    """How long to wait for the other hosts."""
    silence_seconds: float = 60.0
    """Seconds without a sign of the first host until the others give up."""
    token: str = ""
    """The run's secret, the same on all hosts: whoever does not know it is refused."""

    def parse(self) -> tuple[str, int]:
        """Return the address and the port of the rendezvous."""
        host, _, port = self.rendezvous.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise SettingsError(f"rendezvous {self.rendezvous!r}: write HOST:PORT, such as 10.0.0.1:29500")
        if self.count < 1:
            raise SettingsError(f"hosts: at least 1, not {self.count}")
        if not self.token:
            raise SettingsError(
                f"rendezvous {self.rendezvous}: also give --token, a secret that all hosts share, else any program "
                f"that reaches the port could change the run; openssl rand -hex 16 makes one"
            )
        try:
            return socket.gethostbyname(host), int(port)
        except OSError as error:
            raise SettingsError(f"rendezvous {self.rendezvous}: {host} is not known: {error.strerror}") from error


@dataclass(frozen=True)
class HostInfo:
    """This host in a run, when all hosts have arrived."""

    store: KeyValueStore
    store_address: tuple[str, int] | None
    """Host and port of the store; ``None`` if it listens nowhere, and learners inherit their connections."""
    number: int
    ranks: range
    """The ranks that this host runs."""
    address: str
    """Network address of this host's learners."""
    secret: bytes
    """What a learner has to know to be believed."""


def share(size: int, number: int, count: int) -> range:
    """Return the ranks, of ``size``, that host ``number`` of ``count`` runs."""
    return range(size * number // count, size * (number + 1) // count)


@contextlib.contextmanager
def rendezvous(hosts: Hosts, size: int) -> Iterator[HostInfo]:
    """Wait for the other hosts, among which ``size`` ranks are divided; on exit, leave them."""
    host, port = hosts.parse()
    secret = _stretch(hosts.token)
    first = _start_store(hosts, host, port, secret)
    store = first or _connect_store(hosts, host, port, secret)
    try:
        number = 0 if first is not None else _take_number(hosts, store)
        store.set(f"host/{number}", True)
        _await_all(hosts, store, "host", hosts.timeout_seconds)
        address = local_address(host, port)
        here = HostInfo(store, (host, port), number, share(size, number, hosts.count), address, secret)
        try:
            yield here
        except StoreGone:
            raise
        except Exception:
            _part(hosts, here, FAIL_SECONDS)
            raise
        _part(hosts, here, CLOSE_SECONDS)
    except StoreGone as error:
        raise CommunicationError(f"rendezvous {hosts.rendezvous}: the first host is gone") from error
    finally:
        if first is not None:
            store.close()


def _part(hosts: Hosts, host: HostInfo, seconds: float) -> None:
    """Say that we no longer need the store; the first host waits until no other does."""
    with contextlib.suppress(StoreGone, CommunicationError):
        host.store.set(f"parted/{host.number}", True)
        if host.number == 0:
            _await_all(hosts, host.store, "parted", min(seconds, hosts.timeout_seconds))


def fail_run(store: KeyValueStore, report: ErrorReport) -> None:
    """Tell the other launchers that the run has failed."""
    with contextlib.suppress(StoreGone):
        store.setdefault("failed", report)


def _stretch(token: str) -> bytes:
    """Return the key of a token, which takes a while to compute: so a short word is harder to find by trying."""
    return hashlib.scrypt(token.encode(), salt=b"roundelay", n=1 << 14, r=8, p=1, dklen=32)


def _start_store(hosts: Hosts, host: str, port: int, secret: bytes) -> KeyValueStore | None:
    """Host the store if this is the first host; else return ``None``."""
    if hosts.number not in (None, 0):
        return None
    try:
        return start_store(host, port, secret=secret)[0]
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL and hosts.number is None:
            return None
        reason = "the port is in use; choose another" if error.errno == errno.EADDRINUSE else str(error.strerror)
        raise SettingsError(f"rendezvous {hosts.rendezvous}: {reason}") from error


def _connect_store(hosts: Hosts, host: str, port: int, secret: bytes) -> KeyValueStore:
    """Connect to the first host's store, as soon as it is there."""
    deadline = time.monotonic() + hosts.timeout_seconds
    while True:
        try:
            return connect_store(host, port, timeout_seconds=hosts.silence_seconds, secret=secret)
        except Refused as error:
            raise SettingsError(f"rendezvous {hosts.rendezvous}: the run there has another --token") from error
        except NoStore as error:
            raise CommunicationError(
                f"rendezvous {hosts.rendezvous}: a program that is not Roundelay answers"
            ) from error
        except OSError as error:
            if time.monotonic() > deadline:
                raise CommunicationError(
                    f"rendezvous {hosts.rendezvous}: the first host did not come in {hosts.timeout_seconds:g} s"
                ) from error
            time.sleep(POLL_SECONDS)


def _take_number(hosts: Hosts, store: KeyValueStore) -> int:
    number = hosts.number if hosts.number is not None else store.add("hosts", 1)
    if number >= hosts.count or store.has(f"host/{number}"):
        raise SettingsError(f"rendezvous {hosts.rendezvous}: all {hosts.count} hosts are there already")
    return number


def _await_all(hosts: Hosts, store: KeyValueStore, key: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    missing = set(range(hosts.count))
    while missing := {number for number in missing if not store.has(f"{key}/{number}")}:
        if time.monotonic() > deadline:
            here = hosts.count - len(missing)
            raise CommunicationError(
                f"rendezvous {hosts.rendezvous}: only {here} of {hosts.count} hosts came in {seconds:g} s"
            )
        time.sleep(POLL_SECONDS)
