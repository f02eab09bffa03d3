"""Experiments, studies and clusters: from files, or included in the package and found by name; one may extend another.

``extends = "base.toml"`` at the top of a file takes everything from a file beside it, or from an included one by its
name, and changes what the file itself says.
"""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from roundelay import config
from roundelay.errors import SettingsError, suggest

Kind = Literal["experiment", "study", "cluster"]
PACKAGE = Path(str(resources.files("roundelay")))
FOLDERS: dict[Kind, tuple[Path, ...]] = {
    "experiment": (PACKAGE / "included",),
    "study": (PACKAGE / "included" / "studies",),
    "cluster": (PACKAGE / "included" / "clusters", PACKAGE / "planning" / "clusters"),
}
COMMANDS: dict[Kind, str] = {"experiment": "train", "study": "compare", "cluster": "plan"}
DEEPEST = 16  # files that extend each other
LOOP = PACKAGE / "included_loop.txt"
"""A complete training loop with `roundelay.join`."""


def included_names(kind: Kind) -> list[str]:
    """Return the names of all included files of a kind."""
    return sorted(path.stem for folder in FOLDERS[kind] for path in folder.glob("*.toml"))


def find_file(kind: Kind, given: str | Path) -> Path:
    """Return a file: the given one, or the included one of this name."""
    path = Path(given)
    if path.is_file():
        return path
    if path.suffix == ".toml" or len(path.parts) != 1 or path.exists():
        raise SettingsError(f"{path}: no such file; give a TOML file, or one of {', '.join(included_names(kind))}")
    for folder in FOLDERS[kind]:
        if (folder / f"{path}.toml").is_file():
            return folder / f"{path}.toml"
    raise SettingsError(f"no file and no included {kind} {suggest(str(path), included_names(kind))}")


def read_extended(path: Path, kind: Kind = "experiment") -> dict[str, Any]:
    """Read a TOML file, on top of the file that it extends."""
    table, above = config.read(path), [path]
    while (base := table.pop("extends", None)) is not None:
        if not isinstance(base, str):
            raise SettingsError(f"{above[-1]}: extends must be the name of a file, not {base!r}")
        beside = above[-1].parent / base
        under = beside if beside.is_file() else find_file(kind, base)
        if len(above) >= DEEPEST or any(under.samefile(each) for each in above):
            raise SettingsError(f"{above[-1]}: extends {base}, which extends {above[-1].name} again")
        table = merge(config.read(under), table)
        above.append(under)
    return table


def merge(table: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``table`` changed by ``over``: inner tables are merged, or replaced if their ``name`` differs."""
    merged = copy.deepcopy(table)
    for key, value in over.items():
        now = merged.get(key)
        same = (
            isinstance(now, dict) and isinstance(value, dict) and value.get("name", now.get("name")) == now.get("name")
        )
        merged[key] = merge(now, value) if same and isinstance(now, dict) else copy.deepcopy(value)
    return merged
