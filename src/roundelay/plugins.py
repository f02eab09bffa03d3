"""What settings name: classes of the package, of installed packages, and of Python files of the user's own.

A name is one of three: ``bmuf``, which the package has; a name that an installed package offers by an entry point; or
``path/to/file.py:Name``.  Such a file is executed when it is named: an experiment is to be trusted like a program.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from roundelay.errors import SettingsError

__all__ = ["Registry", "digests_of", "installed", "is_file_name", "load_file", "load_object", "resolve"]

T = TypeVar("T")
_FILE_NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
_loaded: dict[Path, ModuleType] = {}


class Registry(Mapping[str, type[T]], Generic[T]):
    """Classes by the names that settings give them; subclasses of ``base``, as is checked of those of others."""

    def __init__(self, base: type[T], kinds: Mapping[str, type[T]], group: str | None = None) -> None:
        self.base, self.group = base, group
        self._kinds = dict(kinds)

    def __getitem__(self, name: str) -> type[T]:
        if name in self._kinds:
            return self._kinds[name]
        if self.group is None:
            raise KeyError(name)
        kind = load_object(name, self.group)
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            raise SettingsError(f"{name}: not a subclass of {self.base.__name__}")
        self._kinds[name] = kind
        return kind

    def __contains__(self, name: object) -> bool:
        known = name in self._kinds or (self.group is not None and name in installed(self.group))
        return known or (self.group is not None and is_file_name(name))

    def __iter__(self) -> Iterator[str]:
        return iter({**self._kinds, **(installed(self.group) if self.group is not None else {})})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def name_of(self, kind: type[T]) -> str | None:
        """Return the name by which settings ask for a class: that of its file, if it is none of the package's."""
        found = next((name for name, known in self._kinds.items() if known is kind), None)
        if found is None and self.group is not None:
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            return f"{Path(file).absolute()}:{kind.__qualname__}" if file is not None else None
        return found


@functools.cache
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages offer, by name."""
    return {each.name: each for each in entry_points(group=group)}


def is_file_name(name: object) -> bool:
    """Tell whether a name is that of something in a Python file: ``path/to/file.py:Name``."""
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None


def resolve(value: Any, folder: Path) -> Any:
    """Return settings in which every ``file.py:Name`` has an absolute path: below ``folder``, or else from here."""
    if isinstance(value, Mapping):
        return {key: resolve(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [resolve(each, folder) for each in value]
    found = _FILE_NAME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    near = folder / found["file"]
    return f"{(near if near.is_file() else Path(found['file'])).absolute()}:{found['name']}"


def load_object(name: str, group: str) -> Any:
    """Return what an installed package's entry point or ``file.py:Name`` names; raise KeyError if there is neither."""
    found = _FILE_NAME.fullmatch(name)
    if found is None:
        return installed(group)[name].load()
    module = load_file(Path(found["file"]))
    if not hasattr(module, found["name"]):
        raise SettingsError(f"{found['file']}: has no {found['name']}")
    return getattr(module, found["name"])


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


def digests_of(settings: Any) -> dict[str, str]:
    """Return the digest of every Python file that settings name, by the file's name."""
    if isinstance(settings, Mapping):
        return {name: digest for each in settings.values() for name, digest in digests_of(each).items()}
    if isinstance(settings, list):
        return {name: digest for each in settings for name, digest in digests_of(each).items()}
    found = _FILE_NAME.fullmatch(settings) if isinstance(settings, str) else None
    if found is None:
        return {}
    path = Path(found["file"])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "no such file"}
