"""The tree shows the architecture: layers of rooms, no cycle, one name for one thing, and tests that mirror it."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import roundelay

SRC, TESTS = Path(roundelay.__file__).parent, Path(__file__).parent
MODULES_AT_THE_TOP, MODULES_IN_A_ROOM = 14, 24

# One line per layer, the lowest first.  A room imports from itself, from rooms in lines above its own, and from nothing
# else; rooms in one line do not import each other.  A module belongs to the longest name that it starts with.
LAYERS = [
    line.split()
    for line in """
    errors _version files config plugins devices included_files
    runs vectors
    communicator|learner|strategy|task|runtime
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
    planning theory study lightning
    report
    own_models
    cli.screen
    cli
    """.strip().splitlines()
]
GROUND, CONTRACT, FACADE = LAYERS[0], "communicator|learner|strategy|task|runtime", ("", "__main__")

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

# `speech/gmm/viterbi.py` is tested by `speech/gmm/test_viterbi.py`.  Two exceptions, each with its reason:
# tests of a subject that spans modules,
SUBJECTS = {
    "test_doctests.py": "examples in all docstrings",
    "test_examples.py": "the programs in examples/",
    "test_site.py": "the pages of docs/",
    "test_tutorial.py": "the commands of docs/tutorial.md",
    "test_pages.py": "commands and code in all pages",
    "test_readme.py": "the commands of README.md",
    "test_fuzzing.py": "all readers of files",
    "test_damaged_data.py": "digests of prepared data, models, graphs and lexica",
    "test_ranges.py": "every number that a setting or an option takes",
    "test_names_from_files.py": "names in files that become paths, in every importer and exporter",
    "test_public_names.py": "what the package exports",
    "test_rooms.py": "the tree itself",
    "test_security.py": "all of the source",
    "test_xdist_schedule.py": "the tests themselves",
    "cli/test_mistakes.py": "what every command says to wrong input",
    "cli/test_light_imports.py": "all commands that need no torch",
    "models/test_model_contract.py": "what every model must keep",
    "models/test_one_device.py": "every model, loss, mask, preconditioner and RBM on one device",
    "report/test_report_browser.py": "the page in a real browser",
    "report/test_report_study.py": "the report of a study, of which every module has a part",
    "runtimes/test_result_validity.py": "how long results are valid, on every runtime",
    "runtimes/processes/test_partition.py": "hosts that are cut off; needs network namespaces",
    "runtimes/processes/test_rejoining.py": "learners that are started again",
    "runtimes/processes/test_slurm.py": "needs a Slurm",
    "runtimes/processes/test_torch_ddp.py": "processes beside torch's own",
    "runtimes/simulator/test_fault_simulation.py": "schedules of faults",
    "strategies/test_contract.py": "what every strategy must keep",
    "strategies/test_contract_device.py": "the same on an accelerator",
    "strategies/test_contract_processes.py": "the same on processes and under MPI",
    "strategies/test_contract_resume.py": "the same after a stop",
    "strategies/test_golden.py": "every strategy against its kept history",
    "strategies/test_oracles.py": "strategies against each other, by algebra",
    "strategies/test_straggler.py": "every strategy with a slow learner",
    "tasks/test_every_model.py": "every model under every strategy",
    "training/test_device_costs.py": "what a step costs on an accelerator",
    "tasks/test_trained_run.py": "from prepared data to words",
    "user_loop/test_real_loops.py": "loops as real programs have them",
}
# and modules without a test file of their own.
RANKS = "starts ranks by mpiexec, as runtimes/mpi/test_mpi_runtime.py does"
ELSEWHERE = {
    "__main__": "one call, by cli/test_train.py in a process of its own",
    "_version": "one number",
    "runtime": "protocols; runtimes/test_single_learner.py has the shortest of its implementations",
    "training.observer": "types of training/test_evaluation.py",
    "runtimes.processes.options": "types of runtimes/processes/test_process_runtime.py",
    "runtimes.processes.external_launch": "needs torchrun, as in cli/test_resume.py",
    "runtimes.processes.fork_server": "a process of its own, by runtimes/processes/test_launcher.py",
    "runtimes.processes.learner_process": "a process of its own, by runtimes/processes/test_launcher.py",
    "runtimes.processes.transport.torch_communicator": (
        "beside shared memory in runtimes/processes/transport/test_shared_memory_communicator.py"
    ),
    "user_loop.script_process": "a process of its own, by user_loop/test_script_launcher.py",
    "runtimes.mpi.collectives": RANKS,
    "runtimes.mpi.mpi_communicator": RANKS,
    "runtimes.mpi.mpi_launcher": RANKS,
    "runtimes.mpi.mpi_transport": RANKS,
    "runtimes.mpi.shared_counter": RANKS,
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


# -- tests mirror the rooms --------------------------------------------------------------------------------------------


def mirror_of(module: str) -> str:
    """Return the path of the test file of a module, or of a room's `__init__`."""
    path = SRC.joinpath(*module.split("."))
    folder = path if path.is_dir() else path.parent
    return (folder.relative_to(SRC) / f"test_{path.name}.py").as_posix()


def unmatched(modules: set[str], tests: set[str], subjects: set[str], elsewhere: set[str]) -> list[str]:
    """Return what is wrong: tests of nothing, modules without a test, exceptions that are none."""
    mirrors = {mirror_of(module): module for module in modules}
    tested = {mirrors[test] for test in tests & mirrors.keys()}
    packages = {module for module in modules if SRC.joinpath(*module.split(".")).is_dir()}
    return [
        *(f"{test}: no such module; rename it, or add it to SUBJECTS" for test in tests - mirrors.keys() - subjects),
        *(f"{name}: no {mirror_of(name)}; write it" for name in modules - tested - packages - elsewhere),
        *(
            f"{test}: is in SUBJECTS, but is no test, or mirrors a module"
            for test in subjects - (tests - mirrors.keys())
        ),
        *(f"{name}: is in ELSEWHERE, but is no module, or has a test" for name in elsewhere - (modules - tested)),
    ]


def test_tests_mirror_the_rooms() -> None:
    tests = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}
    measured = {f"benchmarks/test_{path.name}" for path in (TESTS.parent / "benchmarks").glob("*.py")}
    found = unmatched({*modules()} - {""}, tests - measured, {*SUBJECTS}, {*ELSEWHERE})
    assert not found, "\n".join(sorted(found))


def test_exceptions_name_tests_that_exist() -> None:
    named = {name for reason in ELSEWHERE.values() for name in re.findall(r"[\w/]+\.py", reason)}
    assert [name for name in sorted(named) if not (TESTS / name).is_file()] == []


def test_what_does_not_mirror_is_found() -> None:
    modules = {"speech.gmm", "speech.gmm.viterbi", "files"}
    tests = {"speech/gmm/test_viterbi.py", "test_files.py"}
    assert unmatched(modules, tests, set(), set()) == []
    assert unmatched(modules, tests | {"test_rooms.py"}, {"test_rooms.py"}, set()) == []
    assert len(unmatched(modules, {"test_viterbi.py", "test_files.py"}, set(), set())) == 2
    assert len(unmatched(modules, {"test_files.py"}, set(), {"speech.gmm.viterbi"})) == 0
    assert len(unmatched(modules, tests, {"test_files.py"}, {"speech.gmm.viterbi", "gone"})) == 3


def test_no_test_file_name_occurs_twice_and_no_test_imports_another() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path.name != "conftest.py"]
    assert [name for name, count in Counter(path.name for path in paths).items() if count > 1] == []
    wrong = re.compile(r"^\s*(from|import) test_", re.MULTILINE)
    assert [path.name for path in paths if wrong.search(path.read_text(encoding="utf-8"))] == []
