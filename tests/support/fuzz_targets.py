"""What is fuzzed: every target takes what hypothesis draws, and returns, or raises an error of ours.

Anything else that it raises is a crash.  A target may also refuse by an `OSError`, as for a path in a file that leads
nowhere; the command line shows it in one line, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import shutil
import socket
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

import decodable_run
import stopped_simulations
from damaged_files import READERS, TOML, damaged, put
from hostile_corpora import LINKS, NAMES, SOURCES, World
from odd_settings import INSIDE, KINDS, NEEDED, ODD, SECTIONS, SMALL
from roundelay import config, corpora
from roundelay.cli.corpus import part_folder
from roundelay.corpora.archive import unpack
from roundelay.corpora.importer import import_corpus
from roundelay.errors import RoundelayError
from roundelay.experiment.run_training import train
from roundelay.experiment.settings import Experiment
from roundelay.runs.history import read_details
from roundelay.runtimes.fault_plan import parse as parse_faults
from roundelay.runtimes.messages import CollectiveCall
from roundelay.runtimes.processes.transport import private_store
from roundelay.runtimes.processes.transport.key_value_store import connect_store, start_store
from roundelay.runtimes.processes.transport.private_store import CODE_BYTES, LENGTH, MAGIC, NONCE_BYTES, REQUEST
from roundelay.speech.decoding.network_scorer import open_run
from roundelay.speech.preparation.prepared_data import open_prepared
from roundelay.strategies.bmuf import BMUF
from roundelay.tasks.acoustic import Acoustic
from roundelay.training.checkpoint_files import Checkpoints

Target = Callable[[st.DataObject, Callable[[bytes], None]], None]
"""Called with what draws, and with what keeps the present input for the case that it is the last one."""
VALUES = st.one_of(
    st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=8), st.booleans(), st.none(),
    st.lists(st.sampled_from(ODD), max_size=3),
)  # fmt: skip
"""Anything that a setting may be given."""


_kept: list[tempfile.TemporaryDirectory[str]] = []  # until the end


@functools.cache
def scratch() -> Path:
    """Return a folder for this process, in the temporary folder that it was given."""
    _kept.append(tempfile.TemporaryDirectory(prefix="roundelay-fuzz-"))
    return Path(_kept[-1].name).resolve()


def make_once(names: list[str]) -> None:
    """Make, before processes are forked, what takes long to make and is only read."""
    if {"prepared data", "run: model and graphs"} & set(names):
        decodable_run.place()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Give an empty folder."""
    path = Path(tempfile.mkdtemp(dir=scratch()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# -- files ------------------------------------------------------------------------------------------------------------


def _reader(name: str) -> Target:
    def run(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
        content = data.draw(damaged(READERS[name].sample))
        keep(content)
        with folder() as place:
            READERS[name].read(put(READERS[name], content, place))

    return run


def _importer(name: str) -> Target:
    def run(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
        with folder() as place:
            world = World(place)
            SOURCES[name](world, world.name(data.draw(NAMES)))
            files = sorted(path for path in world.source.rglob("*") if path.is_file())
            damage: bool = data.draw(st.booleans())
            if files and damage:
                chosen: Path = data.draw(st.sampled_from(files))
                chosen.write_bytes(content := data.draw(damaged(chosen.read_bytes()[:4096])))
                keep(chosen.name.encode(errors="replace") + b"\n" + content)
            world.plant(data.draw(LINKS))
            world.ready()
            with contextlib.suppress(RoundelayError):
                import_corpus(corpora.load(name), world.source, world.out)
            assert world.others() == world.before, "a file outside of the folder has changed"

    return run


@functools.cache
def _packed(kind: str) -> bytes:
    data = io.BytesIO()
    content = {"a/b.txt": b"text " * 50, "a/c.wav": READERS["wav"].sample, "d": b""}
    if kind == "zip":
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, each in content.items():
                packed.writestr(name, each)
        return data.getvalue()
    modes: dict[str, Any] = {"tar": "w:", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}
    with tarfile.open(fileobj=data, mode=modes[kind]) as archive:
        for name, each in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(each)
            archive.addfile(info, io.BytesIO(each))
    return data.getvalue()


def _archive(kind: str) -> Target:
    def run(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
        content = data.draw(damaged(_packed(kind)))
        keep(content)
        with folder() as place:
            world = World(place)
            (place / "a.bin").write_bytes(content)
            world.plant(data.draw(LINKS))
            world.ready()
            with contextlib.suppress(RoundelayError):
                unpack(place / "a.bin", part_folder(world.out, "part"))
            assert world.others() == world.before, "a file outside of the folder has changed"

    return run


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings_class(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    kind = KINDS[data.draw(st.sampled_from(sorted(KINDS)))]
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    given = dict(NEEDED.get(kind.__name__, {}))
    if names:
        given |= data.draw(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=3))
    keep(f"{kind.__name__} {given!r}".encode(errors="replace"))
    config.build(kind, given, "x.toml")


def _experiment(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    """Train by a small experiment with some settings changed, if it is still small."""
    table = dict(SMALL)
    if data.draw(st.booleans()):
        section = data.draw(st.sampled_from(sorted(SECTIONS)))
        kind, needed = SECTIONS[section]
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        changes = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=2)) if names else {}
        table[section.partition(" ")[0]] = needed | changes
    else:
        inside = data.draw(st.sampled_from(sorted(INSIDE)))
        kind = KINDS[INSIDE[inside]]
        names = [field.name for field in dataclasses.fields(kind)]
        given: Any = NEEDED.get(kind.__name__, {}) | data.draw(
            st.dictionaries(st.sampled_from(names), VALUES, max_size=2)
        )
        *outer, name = inside.split(".")
        cluster = {name: [given] if name.endswith("s") and name != "pauses" else given}
        for each in outer:
            cluster = {each: cluster}
        table["cluster"] = cluster
    keep(repr(table).encode(errors="replace"))
    job = config.build(Experiment, table, "x.toml").job()
    if job.budget.total <= 64 and sum(each.numel() for each in job.task.make_module().parameters()) < 10**6:
        train(table, on="simulator")


def _assignment(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    keys = ["learners", "strategy.block", "optimizer.lr", "task.hidden", "seed", "budget.epochs", "cluster.nodes"]
    key = data.draw(st.sampled_from(keys) | st.text(max_size=12))
    value = data.draw(st.text(max_size=12) | VALUES.map(str))
    keep(f"{key}={value}".encode(errors="replace"))
    with folder() as place:
        (place / "a.toml").write_bytes(TOML)
        Experiment.read(place / "a.toml", [f"{key}={value}"])


def _faults(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    words = ["kill", "stop", "slow", "isolate", "1", "at", "for", "30s", "x5", ";", "-1", "nan", "s", "0", "server"]
    text = data.draw(st.text(max_size=40) | st.lists(st.sampled_from(words), max_size=9).map(" ".join))
    keep(text.encode(errors="replace"))
    parse_faults(text, 4, 1)


# -- folders in which one file is damaged -----------------------------------------------------------------------------


def _damaging(make: Callable[[], Path], use: Callable[[Path], object], only: str = "") -> Target:
    """Damage one file of a folder, use the folder, and mend the file."""

    def run(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
        root = make()
        files = sorted(path for path in root.rglob("*") if path.is_file() and only in str(path))
        chosen = data.draw(st.sampled_from(files))
        whole = chosen.read_bytes()
        content = data.draw(damaged(whole))
        keep(str(chosen.relative_to(root)).encode() + b"\n" + content[:4096])
        try:
            chosen.write_bytes(content)
            use(root)
        finally:
            chosen.write_bytes(whole)

    return run


@functools.cache
def _copied(part: str) -> Path:
    target = scratch() / part
    shutil.copytree(decodable_run.place() / part, target, ignore=shutil.ignore_patterns("decode"))
    return target


@functools.cache
def _checkpoints() -> Path:
    place = scratch() / "checkpoints"
    place.mkdir()
    with contextlib.suppress(stopped_simulations.Stopped):
        stopped_simulations.run_in(place, stopped_simulations.job_of(BMUF(block=4)), 3, stop=40)
    return place


def _read_checkpoints(run: Path) -> None:
    kept = Checkpoints(run)
    for position in kept.positions():
        for rank in kept.ranks(position):
            kept.read(position, rank)


def _read_prepared(place: Path) -> None:
    data = open_prepared(place)
    for split in data.splits:
        for store in (data.features(split), data.alignments(split), data.phones(split), data.words(split)):
            for _ in store.values():
                pass
        data.labels(split)
    _ = data.tree, data.vocabulary, data.priors()
    for name in data.graph_names:
        data.graph(name)
    task = Acoustic(data=str(place), model=decodable_run.MODEL)
    task.load(0, 0)


@functools.cache
def _trained() -> Path:
    place = scratch() / "trained"
    train(SMALL, place, on="simulator")
    return place


# -- messages ---------------------------------------------------------------------------------------------------------

SECRET = bytes(range(32))


class _Served:
    """A store, and an honest client of it."""

    def __init__(self) -> None:
        self.store, self.port = start_store("127.0.0.1", secret=SECRET)
        self.inherited, _ = start_store(secret=SECRET)
        self.count = 0

    def answers(self) -> None:
        """See that the honest clients are served as before."""
        self.count += 1
        assert self.store.add("roundelay honest", 1) == self.count
        assert self.inherited.add("roundelay honest", 1) == self.count


served = functools.cache(_Served)
OPERATIONS = st.builds(
    lambda kind, number, key, value: REQUEST.pack(kind, number, len(key)) + key + value,
    st.integers(0, 255), st.integers(-(2**63), 2**63 - 1), st.binary(max_size=12), st.binary(max_size=40),
)  # fmt: skip
FRAMES = st.lists(st.builds(lambda content: LENGTH.pack(len(content)) + content, OPERATIONS), max_size=3).map(b"".join)
ANYTHING = st.one_of(st.binary(max_size=200), FRAMES, st.builds(bytes.__add__, FRAMES, st.binary(max_size=20)))


def _stranger(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    """Send anything to the port of a store, with or without a proof."""
    content = data.draw(ANYTHING)
    proof = data.draw(st.sampled_from(["none", "zeros", "true"]))
    keep(proof.encode() + b"\n" + content)
    with socket.create_connection(("127.0.0.1", served().port), timeout=10) as connection:
        greeting = private_store._receive(connection, len(MAGIC) + 2 * NONCE_BYTES)
        mine = os.urandom(NONCE_BYTES)
        if proof == "zeros":
            connection.sendall(mine + bytes(CODE_BYTES))
        elif proof == "true":
            numbers = greeting[len(MAGIC) :]
            connection.sendall(mine + private_store.Handshake(SECRET, numbers, mine).derive("client"))
        with contextlib.suppress(OSError):
            connection.sendall(content)
    served().answers()


def _member(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    """Send anything over an inherited connection."""
    content = data.draw(ANYTHING)
    keep(content)
    with served().inherited.lend() as connection, contextlib.suppress(OSError):
        connection.sendall(content)
    served().answers()


def _pretender(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    """Answer a client of the store with anything."""
    greeting = data.draw(st.sampled_from([b"", MAGIC, MAGIC + bytes(2 * NONCE_BYTES)]))
    content = data.draw(ANYTHING)
    keep(greeting + content)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.sendall(greeting + content)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
            os._exit(0)
        try:
            connect_store("127.0.0.1", listener.getsockname()[1], secret=SECRET).get("key")
        except private_store.StoreGone:
            pass
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


def _call(data: st.DataObject, keep: Callable[[bytes], None]) -> None:
    """Decode what another rank says that it has called."""
    words = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=0, max_size=16))
    keep(repr(words).encode())
    ours = CollectiveCall.of("mean", torch.zeros(2))
    with contextlib.suppress(IndexError, ValueError, OverflowError, struct.error):
        CollectiveCall.decode(words).check(ours, 0, rank=0, other=1)


TARGETS: dict[str, Target] = {
    **{f"reader: {name}": _reader(name) for name in READERS},
    **{f"importer: {name}": _importer(name) for name in SOURCES},
    **{f"archive: {kind}": _archive(kind) for kind in ("tar", "tar.gz", "tar.bz2", "tar.xz", "zip")},
    "settings: classes": _settings_class,
    "settings: experiment": _experiment,
    "settings: --set": _assignment,
    "settings: --faults": _faults,
    "checkpoints": _damaging(_checkpoints, _read_checkpoints),
    "prepared data": _damaging(functools.partial(_copied, "data"), _read_prepared),
    "run: model and graphs": _damaging(functools.partial(_copied, "run"), open_run),
    "run: history": _damaging(_trained, lambda run: (read_details(run), json.dumps({}))),
    "store: stranger": _stranger,
    "store: member": _member,
    "store: pretender": _pretender,
    "messages: collective": _call,
}
"""By name; what is before the colon is the group."""
