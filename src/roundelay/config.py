"""TOML to typed settings and back; an unknown key or a wrong type is an error that says where and what to use."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import tomli_w
from msgspec import Meta

from roundelay.errors import SettingsError, suggest

T = TypeVar("T")
FILE_NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")
"""What names something in a Python file of the user's own."""
Table = dict[str, Any]
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]  # 1 itself would leave nothing, as with a momentum or a dropout of 1
Share = Annotated[float, Meta(ge=0, le=1)]
LIMITS = (
    ("ge", "at least", operator.ge),
    ("gt", "above", operator.gt),
    ("le", "at most", operator.le),
    ("lt", "below", operator.lt),
)


class Settings:
    """The base of settings, which are dataclasses: the bounds in their annotations hold for every instance.

    A bound is written as ``block: Annotated[int, Meta(ge=1)]``, or by a name for it: ``block: Count``.
    """

    exclusive: ClassVar[tuple[str, ...]] = ()
    """Settings of which one at most is given."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.exclusive and all(getattr(self, name) is not None for name in self.exclusive):
            raise SettingsError(f"{' and '.join(self.exclusive)} are both given; use one of them")


def check_bounds(settings: Any, table: str = "") -> None:
    """Raise if a value, or one of a list of values, is outside of the bounds in its annotation; NaN always is.

    ``table`` stands before the name of the setting in the message.
    """
    for name, bounds in _bounds(settings.__class__).items():
        value = getattr(settings, name)
        limits = [(said, limit, holds) for key, said, holds in LIMITS if (limit := getattr(bounds, key)) is not None]
        for each in value if isinstance(value, list) else [value] if value is not None else []:
            if not all(holds(each, limit) for _, limit, holds in limits):
                wanted = " and ".join(f"{said} {limit:g}" for said, limit, _ in limits)
                raise SettingsError(f"{table}{name} must be {wanted}, not {each}")


@functools.cache
def _bounds(kind: type[Any]) -> dict[str, Meta]:
    """Return the bounds of a class by the names of its fields."""
    return {
        name: extra
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
        for option in (hint, *typing.get_args(hint))
        for extra in getattr(option, "__metadata__", ())
        if isinstance(extra, Meta)
    }


def read(path: Path) -> Table:
    """Read a TOML file; a Python file that it names is looked for beside it first."""
    try:
        table: Table = resolve(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    return table


def is_file_name(name: object) -> bool:
    """Tell whether a name is that of something in a Python file: ``path/to/file.py:Name``."""
    return isinstance(name, str) and FILE_NAME.fullmatch(name) is not None


def resolve(value: Any, folder: Path) -> Any:
    """Return settings in which every ``file.py:Name`` has an absolute path: below ``folder``, or else from here."""
    if isinstance(value, Mapping):
        return {key: resolve(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [resolve(each, folder) for each in value]
    found = FILE_NAME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    near = folder / found["file"]
    return f"{(near if near.is_file() else Path(found['file'])).absolute()}:{found['name']}"


def parse_assignment(text: str) -> tuple[str, Any]:
    """Read ``key.inner=value``, the value written as in TOML, or a bare word for a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {text}: expected KEY=VALUE, as in --set optimizer.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def put(table: Table, key: str, value: Any) -> None:
    """Set ``key.inner`` in a table; a Python file that the value names is looked for from here."""
    *path, last = key.split(".")
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise SettingsError(f"--set {key}: {name} is not a table")
    table[last] = resolve(value, Path())


def apply(table: Table, assignment: str) -> None:
    """Apply ``key.inner=value``."""
    put(table, *parse_assignment(assignment))


def build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    """Make a settings dataclass of a table; ``where`` names the table in messages."""
    if not isinstance(table, Mapping):
        raise SettingsError(f"{where} must be a table, not {table!r}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]  # kind is a dataclass
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in fields:
            raise SettingsError(f"{where}: unknown key {suggest(key, fields)}")
        values[key] = _convert(hints[key], value, _inside(where, key))
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{where}: {missing[0]} is missing")
    try:
        return kind(**values)
    except (SettingsError, ValueError) as error:
        raise SettingsError(f"{where}: {error}") from error


def build_named(kinds: Mapping[str, type[T]], table: Mapping[str, Any] | str, where: str) -> T:
    """Make the one of ``kinds`` that ``table.name`` names; a bare string is a name with default settings."""
    table = {"name": table} if isinstance(table, str) else dict(table)
    name = table.pop("name", None)
    if name is None:
        raise SettingsError(f"{where}.name is missing; there are {', '.join(sorted(_names(kinds)))}")
    try:
        kind = kinds[name]
    except KeyError:
        raise SettingsError(f"{where}.name: unknown {suggest(str(name), _names(kinds))}") from None
    except SettingsError as error:
        raise SettingsError(f"{where}.name: {error}") from error
    return build(kind, table, where)


def _names(kinds: Mapping[str, type[T]]) -> list[str]:
    """Return the names of all kinds; a registry knows those that are installed, too."""
    return list(getattr(kinds, "names", kinds.keys)())


def plain(settings: Any) -> Any:
    """Return settings as tables, lists and plain values, names included; ``None`` is left out."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        table = {
            field.name: plain(getattr(settings, field.name))
            for field in dataclasses.fields(settings)
            if field.init and getattr(settings, field.name) is not None
        }
        name = _name_of(type(settings))
        return {"name": name} | table if name is not None else table
    if isinstance(settings, Mapping):
        return {key: plain(value) for key, value in settings.items() if value is not None}
    if isinstance(settings, list | tuple):
        return [plain(value) for value in settings]
    return settings


def dump(settings: Any) -> str:
    """Write settings as TOML."""
    return tomli_w.dumps(plain(settings))


def _name_of(kind: type) -> str | None:
    """Return what settings call a kind of a base class that has a ``registry`` of kinds; None for any other class."""
    registry = getattr(kind, "registry", None)  # a `roundelay.plugins.Registry`
    if registry is None:
        return None
    ours: str | None = next((name for name, known in registry.items() if known is kind), None)
    return ours if ours is not None else registry.name_of(kind)


def _inside(where: str, key: str) -> str:
    """Name a key of the table ``where``: ``file.toml: strategy.block``."""
    return f"{where}: {key}" if where.endswith(".toml") else f"{where}.{key}"


def _convert(hint: Any, value: Any, where: str) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for option in options:
        if isinstance(option, type) and isinstance(value, dict | str):
            if (registry := getattr(option, "registry", None)) is not None:
                return build_named(registry, value, where)
            if dataclasses.is_dataclass(option) and isinstance(value, dict):
                return build(typing.cast("type[Any]", option), value, where)
        if typing.get_origin(option) is list and isinstance(value, list):
            (inner,) = typing.get_args(option)
            if dataclasses.is_dataclass(inner):
                return [_convert(inner, each, f"{where}[{k}]") for k, each in enumerate(value)]
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        choices = [
            name
            for option in options
            if typing.get_origin(option) is typing.Literal
            for name in typing.get_args(option)
        ]
        if choices and isinstance(value, str):
            raise SettingsError(f"{where}: unknown {suggest(value, choices)}") from error
        said = str(error)
        raise SettingsError(f"{where}: {said[0].lower()}{said[1:]}") from error
