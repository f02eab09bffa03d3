"""TOML to typed settings and back; an unknown key or a wrong type is an error that says where and what to use."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
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
LARGEST_INT = 10**15
LARGEST_FLOAT = 1e30  # products of two still fit into 64 bits, and it fits into the 32 bits of weights
"""What a number of a setting is at most, unless its own bounds say otherwise."""


def limits(*, largest: float, ge: float | None = None, gt: float | None = None) -> Meta:
    """Return bounds with a largest number that no sensible setting exceeds; only one that does is told of it."""
    extra = {"largest": largest}
    return Meta(gt=gt, extra=extra) if gt is not None else Meta(ge=ge, extra=extra)


Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Width = Annotated[int, limits(ge=1, largest=1_000_000)]  # of a layer
Depth = Annotated[int, limits(ge=1, largest=1000)]  # layers, and what else is made one by one
Context = Annotated[int, limits(ge=0, largest=100_000)]  # frames
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]  # 1 itself would leave nothing, as with a momentum or a dropout of 1
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, limits(ge=0, largest=1e9)]  # a wait that clocks and sockets can count
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


@dataclasses.dataclass(frozen=True)
class Range:
    """What the numbers of a setting may be; a list of numbers has one range for all of them."""

    kind: type[int] | type[float]
    bounds: Meta = dataclasses.field(default_factory=Meta)
    default: Any = None
    """The setting's default; only if it is infinite may the setting be."""
    only_numbers: bool = True
    """Whether the setting takes nothing else, as a name."""

    def check(self, name: str, value: Any) -> None:
        """Raise if a number is not of the kind, is outside of the bounds, too large, or not finite."""
        if isinstance(value, list | tuple):
            for each in value:
                self.check(name, each)
        elif value is None or (not self.only_numbers and not isinstance(value, numbers.Real)):
            return
        elif isinstance(value, bool) or not isinstance(value, numbers.Integral if self.kind is int else numbers.Real):
            raise SettingsError(f"{name} must be {'an integer' if self.kind is int else 'a number'}, not {value!r}")
        elif wanted := self._wanted(value):
            near = self._nearest(value)
            use = f"; use {self._shown(near)}" if near is not None else ""
            raise SettingsError(f"{name} must be {wanted}, not {value}{use}")

    def _wanted(self, value: Any) -> str:
        """Return what a value must be, if it is not."""
        limits = [(said, limit, holds) for key, said, holds in LIMITS if (limit := self._limit(key)) is not None]
        said = [f"{said} {self._shown(limit)}" for said, limit, _ in limits]
        inside = all(holds(value, limit) for _, limit, holds in limits)
        if math.isinf(value) and inside and not self._may_be_infinite():
            return " and ".join([*said, "finite"])
        if inside and (math.isinf(value) or abs(value) <= self._largest()):
            return ""
        if inside and not math.isnan(value):
            largest = self._largest()
            said.append(f"at most {self._shown(largest)}" if value > 0 else f"at least {self._shown(-largest)}")
        return " and ".join(said) or "finite"

    def _nearest(self, value: Any) -> float | None:
        """Return the valid value next to a number; for NaN, or if there is no nearest one, the default, 1 or 0."""
        low, high = self._limit("ge"), self._limit("le")
        if low is not None and value < low:
            return low
        if high is not None and value > high:
            return high
        if math.isfinite(value) and abs(value) > self._largest() and self._limit("lt") is None:
            return self._largest() if value > 0 else -self._largest()
        usual = (each for each in (self.default, 1, 0) if isinstance(each, int | float) and not isinstance(each, bool))
        return next((each for each in usual if not self._wanted(each)), None)

    def _shown(self, number: float) -> str:
        return f"{number:g}" if self.kind is float else str(int(number))

    def _limit(self, key: str) -> float | None:
        limit: float | None = getattr(self.bounds, key)
        return limit

    def _largest(self) -> float:
        usual = LARGEST_INT if self.kind is int else LARGEST_FLOAT
        largest: float = (self.bounds.extra or {}).get("largest", usual)
        return max(largest, self.bounds.le or 0)

    def _may_be_infinite(self) -> bool:
        return isinstance(self.default, float) and math.isinf(self.default)


def check_bounds(settings: Any, table: str = "") -> None:
    """Raise if a number, or one of a list of numbers, is outside of the range that its annotation gives.

    ``table`` stands before the name of the setting in the message.
    """
    for name, each in ranges(settings.__class__).items():
        each.check(table + name, getattr(settings, name))


@functools.cache
def ranges(kind: type[Any]) -> dict[str, Range]:
    """Return the ranges of a dataclass by the names of its fields that hold numbers."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {
        field.name: _range(hints[field.name], field.default)
        for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
    }
    return {name: each for name, each in found.items() if each is not None}


def _range(hint: Any, default: Any) -> Range | None:
    """Return the range of the numbers in a type, None if it has none: ``list[Count] | None`` has that of ``Count``."""
    leaves = [*_leaves(hint)]
    kinds = [(leaf, meta) for leaf, meta in leaves if leaf in (int, float)]
    if not kinds:
        return None
    kind, meta = kinds[-1]
    others = [leaf for leaf, _ in leaves if leaf not in (int, float, type(None), ...)]
    return Range(kind, meta, None if default is dataclasses.MISSING else default, only_numbers=not others)


def _leaves(hint: Any, meta: Meta | None = None) -> Iterator[tuple[Any, Meta]]:
    """Yield the innermost types of a type, each with the bounds around it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(hint, "__metadata__"):
        own = next((extra for extra in hint.__metadata__ if isinstance(extra, Meta)), meta)
        yield from _leaves(arguments[0], own)
    elif origin in (list, tuple, types.UnionType, typing.Union):
        for argument in arguments:
            yield from _leaves(argument, meta)
    else:
        yield hint, meta or Meta()


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
    hints, values = typing.get_type_hints(kind), {}
    limited = ranges(kind)  # type: ignore[arg-type]  # a class is hashable
    for key, value in table.items():
        if key not in fields:
            raise SettingsError(f"{where}: unknown key {suggest(key, fields)}")
        values[key] = _convert(hints[key], value, _inside(where, key))
        if key in limited:
            limited[key].check(f"{where}: {key}", values[key])
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
    if not isinstance(table, Mapping | str):
        raise SettingsError(f"{where} must be a name or a table, not {table!r}")
    table = {"name": table} if isinstance(table, str) else dict(table)
    name = table.pop("name", None)
    if name is None:
        raise SettingsError(f"{where}.name is missing; there are {', '.join(sorted(_names(kinds)))}")
    if not isinstance(name, str):
        raise SettingsError(f"{where}.name must be a string, not {name!r}")
    try:
        kind = kinds[name]
    except KeyError:
        raise SettingsError(f"{where}.name: unknown {suggest(name, _names(kinds))}") from None
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
        if isinstance(option, type) and value is not None:
            if (registry := getattr(option, "registry", None)) is not None:
                return build_named(registry, value, where)
            if dataclasses.is_dataclass(option):
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
