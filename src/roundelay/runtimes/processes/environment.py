"""The world that torchrun or Slurm describes in environment variables."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roundelay.errors import CommunicationError, SettingsError
from roundelay.runtimes.processes.transport.key_value_store import KeyValueStore, StoreGone, torch_message

MISSING_SECONDS = 2.0  # torchrun starts one process after another
SLURM_PORTS = 20_000  # number of ports; the job's number selects one


@dataclass(frozen=True)
class World:
    """A process's rank, and where its store is."""

    rank: int
    size: int
    store_address: tuple[str, int]
    store_exists: bool
    """Whether another process hosts a store there already."""
    attempt: str = "0"
    """Identifies this start of the job; earlier ones may have used the same store."""
    local_rank: int = 0
    """Our rank among the processes of our host."""
    local_ranks: tuple[int, ...] = ()
    """The ranks of our host, if torchrun has started them: their processes can be looked for."""

    @property
    def restarted(self) -> bool:
        """Whether the launcher has started this job before."""
        return self.attempt.rpartition(".")[2] != "0"

    @property
    def host(self) -> str:
        """A name that is equal for processes that can share memory."""
        return host_name()

    @property
    def address(self) -> str:
        """Our network address, as the others see it."""
        return local_address(*self.store_address)

    def connect(self, heartbeat_timeout: float) -> KeyValueStore:
        """Connect to the store; rank 0 hosts it if there is none."""
        from roundelay.runtimes.processes.transport.torch_store import connect_torch_store, start_torch_store

        host, port = self.store_address
        try:
            socket.getaddrinfo(host, port)  # torch tries for minutes
        except OSError as error:
            raise CommunicationError(
                f"rank {self.rank}: {host}: {error.strerror}; set MASTER_ADDR to an address of the first host"
            ) from error
        try:
            if self.rank == 0 and not self.store_exists:
                store, _ = start_torch_store(host, port)
            else:
                store = connect_torch_store(host, port, timeout_seconds=max(60.0, heartbeat_timeout))
        except (OSError, StoreGone) as error:
            raise CommunicationError(f"rank {self.rank}: no store at {host}:{port}: {torch_message(error)}") from error
        return store.with_prefix(f"roundelay/{self.attempt}")


class Siblings:
    """The processes that torchrun has started on our host: one that ends before its first heartbeat is missed here.

    A process is known by the environment that it was started with.  If ours does not show there what torchrun has set
    (a wrapper may have set it later), nothing is known.
    """

    def __init__(self, world: World) -> None:
        self._world, self._processes = world, dict[int, int]()  # by rank
        self._missing_since: dict[int, float] = {}
        names = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        self._common = {f"{name}={os.environ[name]}".encode() for name in names if name in os.environ}
        self._known = bool(world.local_ranks) and self._is_rank(world.rank, "self")

    def has_ended(self, rank: int) -> bool:
        """Return whether there has been no process of a rank of our host for two seconds."""
        if not self._known or rank not in self._world.local_ranks:
            return False
        if self._find(rank):
            self._missing_since.pop(rank, None)
            return False
        now = time.monotonic()
        return now - self._missing_since.setdefault(rank, now) > MISSING_SECONDS

    def _find(self, rank: int) -> bool:
        before = self._processes.get(rank)
        if before is not None and self._is_rank(rank, str(before)):
            return True
        for name in filter(str.isdecimal, os.listdir("/proc")):
            if self._is_rank(rank, name):
                self._processes[rank] = int(name)
                return True
        return False

    def _is_rank(self, rank: int, process: str) -> bool:
        try:
            found = set(Path(f"/proc/{process}/environ").read_bytes().split(b"\0"))
        except OSError:  # it has ended, or is not ours
            return False
        return found >= self._common | {f"RANK={rank}".encode()}


def find(environment: Mapping[str, str] = os.environ) -> World | None:
    """Return the world that a launcher has made; ``None`` if there is none, or we are alone in it."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _torchrun(environment)
    if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return _slurm(environment)
    return None


def _torchrun(environment: Mapping[str, str]) -> World:
    try:
        store_address = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    except KeyError as missing:
        raise SettingsError(f"RANK and WORLD_SIZE are set, but not {missing.args[0]}") from missing
    store_exists = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    local_rank, local_ranks = int(environment.get("LOCAL_RANK", rank)), range(0)
    if "TORCHELASTIC_RUN_ID" in environment:
        local_ranks = range(rank - local_rank, rank - local_rank + int(environment.get("LOCAL_WORLD_SIZE", "1")))
    return World(rank, size, store_address, store_exists, attempt, local_rank, tuple(local_ranks))


def _slurm(environment: Mapping[str, str]) -> World:
    job, step = environment.get("SLURM_JOB_ID", "0"), environment["SLURM_STEP_ID"]
    port = int(environment.get("MASTER_PORT", 20_000 + int(job) % SLURM_PORTS))
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "localhost")
    host = environment.get("MASTER_ADDR") or first_of(nodes)
    rank, size = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    local_rank = int(environment.get("SLURM_LOCALID", rank))
    return World(
        rank, size, (host, port), store_exists=False, attempt=f"{job}.{step}.{restarts}", local_rank=local_rank
    )


def first_of(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: ``gpu[03-05,9],cpu1`` begins with ``gpu03``."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)", nodes)
    if match is None:
        raise SettingsError(f"{nodes!r} is not a list of hosts as Slurm writes it")
    return "".join(part or "" for part in match.groups())


def local_address(host: str, port: int) -> str:
    """Return our address as ``host`` sees it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port or 1))  # sends nothing
        address: str = probe.getsockname()[0]
        return address


def host_name() -> str:
    """Return a name of this machine and of the namespace whose processes see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text(encoding="ascii").strip() if boot.exists() else socket.gethostname()
    spaces = Path("/proc/self/ns/pid")
    return f"{machine} {os.readlink(spaces) if spaces.is_symlink() else ''}".strip()
