"""Nothing in the source reads pickles, runs a shell or evaluates text, and servers stay on loopback."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.save",
    "np.load",
}


def _sources(root: Path) -> list[Path]:
    return sorted((root / "src" / "roundelay").rglob("*.py"))


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return f"{call.func.value.id}.{call.func.attr}"
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _faults(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_IMPORTS:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            if _name(node) in FORBIDDEN_CALLS:
                found.append(_name(node))
            for keyword in node.keywords:
                if keyword.arg in ("shell", "allow_pickle") and getattr(keyword.value, "value", True) is not False:
                    found.append(f"{keyword.arg}=")
    return found


def test_no_source_reads_pickles_or_runs_text(root: Path) -> None:
    sources = _sources(root)
    assert len(sources) > 100
    assert {
        str(path.relative_to(root)): faults for path in sources if (faults := _faults(ast.parse(path.read_text())))
    } == {}


@pytest.mark.parametrize(
    "text", ["import pickle", "from pickle import loads", "eval('1')", "torch.load(f)", "run(x, shell=True)"]
)
def test_what_is_looked_for_would_be_found(text: str) -> None:
    assert _faults(ast.parse(text))


def test_no_source_binds_to_all_addresses(root: Path) -> None:
    wide = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in _sources(root)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::")
    ]
    assert wide == []
