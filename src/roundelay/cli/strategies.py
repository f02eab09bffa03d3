"""``roundelay strategies``: list the strategies, or show one with its equations and hyperparameters."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
import unicodedata
from typing import TYPE_CHECKING, Any

import click

from roundelay.cli.screen.plain_tables import NARROW, keep_whole, plain_console, plain_table, wide_option

if TYPE_CHECKING:  # torch takes seconds to import
    from roundelay.strategy import Strategy

EPILOG = """\b
Examples:
  roundelay strategies
  roundelay strategies bmuf
  roundelay strategies --json
"""
CITATION = re.compile(r"[A-Z][\w-]+(?:, [A-Z][\w-]+)*(?: & [A-Z][\w-]+| et al\.), \d{4}")
GROUP = r"\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"  # with braces in it, one deep
SIGNS = {
    "gets": "←",
    "cdot": "·",
    "le": "≤",
    "ge": "≥",
    "infty": "∞",
    "top": "ᵀ",
    "oplus": "⊕",
    "pm": "±",
    "to": "→",
    "sum": "Σ",
    "partial": "∂",
    "nabla": "∇",
    "quad": " ",
    "lambda": "λ",  # Unicode spells its name otherwise
}
"""Signs of TeX by name, without other Greek letters."""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str | None, *, wide: bool, as_json: bool) -> None:
    """List the strategies with their papers, or show the equations and hyperparameters of NAME."""
    from roundelay.strategies import STRATEGIES, find

    if name is not None:
        described = describe(name, find(name))
        print(json.dumps(described)) if as_json else _show(described, wide=wide)
        return
    everyone = [describe(each, STRATEGIES[each]) for each in sorted(STRATEGIES.names())]
    print(json.dumps({"strategies": everyone})) if as_json else _list(everyone, wide=wide)


def describe(name: str, kind: type[Strategy]) -> dict[str, Any]:
    """Return name, summary, paper, description and hyperparameters of a strategy as JSON values."""
    text = inspect.getdoc(kind) or ""
    return {
        "name": name,
        "summary": text.partition("\n")[0],
        "paper": _paper(text),
        "description": text,
        "module": kind.__module__,
        "hyperparameters": hyperparameters(kind),
    }


def _paper(text: str) -> str:
    """Return authors and year of the paper: a citation that begins a paragraph, or else the first one."""
    paragraphs = [paragraph.replace("\n", " ") for paragraph in text.split("\n\n")]
    first = [found for paragraph in paragraphs if (found := CITATION.match(paragraph))]
    cited = first[0] if first else CITATION.search(" ".join(paragraphs))
    return cited.group() if cited else ""


def hyperparameters(kind: type[Any], prefix: str = "") -> list[dict[str, Any]]:
    """List a settings class's fields: name, type, default, and the comment beside it."""
    from roundelay.strategies.compression import COMPRESSIONS, Compression

    hints, said = typing.get_type_hints(kind), _comments(kind)
    listed: list[dict[str, Any]] = []
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(default):
            default = type(default).__name__
        listed.append(
            {
                "name": prefix + field.name,
                "type": _type_name(hints[field.name]),
                "default": None if default is dataclasses.MISSING else default,
                "meaning": said.get(field.name, ""),
            }
        )
        if Compression in typing.get_args(hints[field.name]):
            for name, compression in sorted(COMPRESSIONS.items()):
                listed += hyperparameters(compression, f"{prefix}{field.name} {name}: ")
    return listed


def readable(text: str) -> str:
    """Write the TeX of a docstring for a terminal."""

    def formula(match: re.Match[str]) -> str:
        tex = re.sub(r"\\frac(\d)(\d)", r"\1/\2", match.group(1))
        for _ in range(3):  # as deep as fractions are nested
            tex = re.sub(rf"\\frac{GROUP}{GROUP}", _fraction, tex)
        tex = re.sub(r"\\(?:mathrm|mathbf|text)\{([^{}]*)\}", r"\1", tex)
        tex = re.sub(r"\\bar\s*\{?\\?([A-Za-z]+)\}?", lambda m: _sign(m.group(1)) + "\u0304", tex)
        tex = re.sub(r"\\([A-Za-z]+)", lambda m: _sign(m.group(1)), tex)
        tex = re.sub(r"([_^])\{([^{}]*[^\w{}][^{}]*)\}", r"\1(\2)", re.sub(r"\\[,;! ]", " ", tex))
        return re.sub(r" +", " ", tex.replace("{", "").replace("}", "").replace("\\|", "‖"))

    return re.sub(r"\$([^$]+)\$", formula, text).replace("``", "'")


def _sign(name: str) -> str:
    """Return the sign of this name, or the name itself if it is a word, as ``max`` is."""
    case = "SMALL" if name.islower() else "CAPITAL"
    try:
        return SIGNS.get(name) or unicodedata.lookup(f"GREEK {case} LETTER {name.upper()}")
    except KeyError:
        return name


def _fraction(match: re.Match[str]) -> str:
    above, below = (part if re.fullmatch(r"[\w\\]+", part) else f"({part})" for part in match.groups())
    return f"{above}/{below}"


def _comments(kind: type[Any]) -> dict[str, str]:
    """Return the comment beside each field in the source, or the string below it."""
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        source = inspect.getsource(base)
        beside = re.findall(r"(?m)^    (\w+): [^#\n]*?(?:  # ([^\n]*))?(?:\n    \"\"\"([^\"]*)\"\"\")?$", source)
        said |= {name: comment or string for name, comment, string in beside if comment or string}
    return said


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Union:
        return " | ".join(map(_type_name, typing.get_args(hint)))
    if isinstance(hint, type) and not typing.get_args(hint):
        return "None" if hint is types.NoneType else hint.__name__
    return re.sub(r"\b\w+\.", "", str(hint))


def _list(everyone: list[dict[str, Any]], *, wide: bool) -> None:
    console = plain_console(wide=wide)
    narrow = console.width < NARROW
    table = (
        plain_table("strategy", "what it does") if narrow else plain_table("strategy", "paper", "what it does", names=2)
    )
    for each in everyone:
        authors, _, year = each["paper"].rpartition(", ")
        short = f"{authors.partition(',')[0]} et al." if "," in authors else authors
        paper, summary = f"{short}, {year}", readable(each["summary"])
        table.add_row(each["name"], *([f"{summary} ({paper})"] if narrow else [paper, summary]))
    console.print(keep_whole(table))


def _show(described: dict[str, Any], *, wide: bool) -> None:
    console = plain_console(wide=wide)
    console.print(f"{described['name']}  ({described['module']})\n")
    for paragraph in readable(described["description"]).split("\n\n"):
        console.print(" ".join(paragraph.split("\n")) + "\n")
    table = plain_table("hyperparameter", "type", "default", "")
    for each in described["hyperparameters"]:
        default = "none" if each["default"] is None else str(each["default"])
        table.add_row(each["name"], each["type"], default, readable(each["meaning"]))
    console.print(keep_whole(table))
