"""What settings name: classes of the package, of installed packages, and of Python files of the user's own.

A name is one of three: ``bmuf``, which the package has; a name that an installed package offers by an entry point; or
``path/to/file.py:Name``.  Such a file is executed when it is named: an experiment is to be trusted like a program.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from roundelay.config import FILE_NAME
from roundelay.errors import SettingsError, suggest

T = TypeVar("T")
_loaded: dict[Path, ModuleType] = {}


class Registry(dict[str, type[T]]):
    """The package's classes by the names that settings give them; a name that it does not have is looked for outside.

    ``registry[name]`` finds classes of installed packages (by the entry points ``group``) and of files too, if they are
    subclasses of ``base``; iterating gives those of the package, and `names` all that are installed.
    """

    def __init__(self, base: type[T], kinds: Mapping[str, type[T]], group: str | None = None) -> None:
        super().__init__(kinds)
        self.base, self.group = base, group
        self._found: dict[str, type[T]] = {}

    def __missing__(self, name: str) -> type[T]:
        if self.group is None:
            raise KeyError(name)
        if name not in self._found:
            kind = load_object(name, self.group)
            if not (isinstance(kind, type) and issubclass(kind, self.base)):
                raise SettingsError(f"{name}: not a subclass of {self.base.__name__}")
            self._found[name] = kind
        return self._found[name]

    def look_up(self, name: object) -> type[T] | None:
        """Return the class of this name, None if there is none."""
        try:
            return self[str(name)]
        except KeyError:
            return None

    def find(self, name: str, what: str) -> type[T]:
        """Return the class of this name, or raise a `SettingsError` that says what there is."""
        if (kind := self.look_up(name)) is None:
            raise SettingsError(f"unknown {what} {suggest(name, self.names())}")
        return kind

    def names(self) -> list[str]:
        """Return the names of the package's classes, and of those that are installed."""
        return [*self, *(installed(self.group) if self.group is not None else ())]

    def name_of(self, kind: type[T]) -> str | None:
        """Return the name by which settings ask for a class from outside: that which found it, or its file's.

        A class of an interactive session has no file; its own name is for people to read.
        """
        found = next((name for name, known in self._found.items() if known is kind), None)
        if found is None and self.group is not None:
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            return f"{Path(file).absolute()}:{kind.__qualname__}" if file is not None else kind.__qualname__
        return found


@functools.cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages offer, by name."""
    return {each.name: each for each in entry_points(group=group)}


def load_object(name: str, group: str) -> Any:
    """Return what an installed package's entry point or ``file.py:Name`` names; raise KeyError if there is neither."""
    found = FILE_NAME.fullmatch(name)
    if found is None:
        return installed(group)[name].load()
    module = load_file(Path(found["file"]))
    if not hasattr(module, found["name"]):
        raise SettingsError(f"{found['file']}: has no {found['name']}")
    return getattr(module, found["name"])


def is_loaded(name: str) -> bool:
    """Tell whether this process has executed the file of ``file.py:Name`` already."""
    found = FILE_NAME.fullmatch(name)
    return found is not None and Path(found["file"]).absolute() in _loaded


def load_file(path: Path) -> ModuleType:
    """Execute a Python file, once in each process, and return it as a module."""
    path = path.absolute()
    if path not in _loaded:
        if not path.is_file():
            raise SettingsError(f"{path}: no such file")
        own = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"  # files may share a stem
        spec = importlib.util.spec_from_file_location(own, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[own] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[own]
            raise SettingsError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
        _loaded[path] = module
    return _loaded[path]
