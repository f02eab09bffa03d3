"""The tree shows the architecture: layers of rooms, no cycle, one name for one thing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import roundelay

SRC = Path(roundelay.__file__).parent
MODULES_AT_THE_TOP, MODULES_IN_A_ROOM = 14, 24

# One line per layer, the lowest first.  A room imports from itself, from rooms in lines above its own, and from nothing
# else; rooms in one line do not import each other.  A module belongs to the longest name that it starts with.
LAYERS = [
    line.split()
    for line in """
    errors _version files config plugins
    runs
    communicator|vector|learner|strategy|task|runtime
    strategies optim models
    training runtimes formats
    runtimes.processes.transport runtimes.simulator runtimes.mpi corpora
    runtimes.processes corpora.synthetic speech
    speech.features
    speech.language speech.gmm
    speech.preparation
    speech.decoding
    tasks
    experiment user_loop
    planning theory study
    report
    cli
    """.strip().splitlines()
]
GROUND, CONTRACT, FACADE = LAYERS[0], "communicator|vector|learner|strategy|task|runtime", ("", "__main__")

# Rooms in different layers that still do not import each other: left never imports right, nor right left.
APART = {
    "training": "runtimes runtimes.simulator runtimes.processes runtimes.processes.transport runtimes.mpi formats "
    "corpora speech",
    "runtimes.mpi": "runtimes.processes runtimes.processes.transport runtimes.simulator strategies",
    "runtimes.simulator": "runtimes.processes strategies optim models",
    "runtimes.processes": "strategies optim models formats corpora speech",
    "strategies": "runtimes runtimes.simulator formats corpora speech",
    "formats": f"{CONTRACT} strategies optim models",
    "corpora": f"{CONTRACT} strategies optim models",
}


class Import(NamedTuple):
    importer: str
    imported: str
    line: int


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name below it; a package by the name of its folder."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def imports() -> list[Import]:
    """Every import between modules: at the top, inside functions, under TYPE_CHECKING."""
    return [
        Import(name, target, getattr(node, "lineno", 0))
        for name, tree in modules().items()
        for node in ast.walk(tree)
        for target in _targets(node)
        if target != name
    ]


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        assert not node.level, "imports are absolute"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return
    for name in names:
        head, _, rest = name.partition(".")
        if head == "roundelay":
            while rest not in modules():  # a name in a module
                rest = rest.rpartition(".")[0]
            if rest:
                yield rest


def room_of(module: str) -> tuple[int, str]:
    """Return the layer of a module and its room."""
    best: tuple[int, int, str] = (-1, -1, "")
    for level, rooms in enumerate(LAYERS):
        for room in rooms:
            for prefix in room.split("|"):
                if module == prefix or module.startswith(f"{prefix}."):
                    best = max(best, (len(prefix), level, room))
    assert best[0] >= 0, f"{module} is in no room: add it to LAYERS"
    return best[1], best[2]


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return what is left of a graph when everything that imports nothing, or nothing that is left, is taken away."""
    left = {node: set(others) for node, others in graph.items()}
    while free := [node for node, others in left.items() if not others & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


def test_rooms_import_from_lower_layers_only() -> None:
    wrong = []
    apart = {(one, other) for one, others in APART.items() for other in others.split()}
    for each in imports():
        if each.importer in FACADE:
            continue
        (level, room), (below, other) = room_of(each.importer), room_of(each.imported)
        if room in GROUND or other in GROUND:
            fine = other in GROUND
        else:
            fine = room == other or (below < level and (room, other) not in apart and (other, room) not in apart)
        if not fine:
            wrong.append(f"{each.importer}:{each.line} ({room}) imports {each.imported} ({other})")
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_a_detour() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules() if name not in FACADE}
    for each in imports():
        if each.importer in graph:
            graph[each.importer].add(each.imported)
    assert cycles(graph) == []


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c", "d"]


def test_no_file_name_occurs_twice() -> None:
    names = Counter(path.name for path in SRC.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_public_class_name_occurs_twice() -> None:
    homes = defaultdict(list)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


@pytest.mark.parametrize("folder", [SRC, *(path.parent for path in SRC.rglob("*/__init__.py"))], ids=lambda p: p.name)
def test_a_room_can_be_overlooked(folder: Path) -> None:
    count = sum(path.name != "__init__.py" for path in folder.glob("*.py"))
    assert count <= (MODULES_AT_THE_TOP if folder == SRC else MODULES_IN_A_ROOM)
