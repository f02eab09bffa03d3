"""What pages show to be typed: every command and option exists, every Python block is Python, every file is there."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from roundelay.cli import COMMANDS, roundelay
from roundelay.included_files import included_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for _, kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        yield kind, text


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each call of the command line in a page's blocks."""
    for kind, text in blocks(page):
        if kind in ("", "sh", "bash", "console"):
            for line in text.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\|", line):
                    if re.match(r"\s*(mpiexec .* |srun .* |\$ )?roundelay \w", part):
                        words = shlex.split(part, comments=True)
                        yield words[words.index("roundelay") + 1 :]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    context = click.Context(roundelay)
    assert words[0] in COMMANDS, f"no command {words[0]}"
    found = roundelay.get_command(context, words[0])
    assert found is not None
    if isinstance(found, click.Group):
        inner = found.get_command(click.Context(found), words[1])
        assert inner is not None, f"no command {words[0]} {words[1]}"
        return inner, words[2:]
    return found, words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_options_exist(page: Path) -> None:
    for words in commands(page):
        if words[0] in ("--version", "--help", "--load"):
            continue
        command, rest = command_of(words)
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        ours = rest[: rest.index("--")] if "--" in rest else rest  # what follows is for the user's script
        given = {word.partition("=")[0] for word in ours if word.startswith("--")}
        assert given <= known | {"--help"}, f"roundelay {' '.join(words)}: no option {given - known}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_experiments_and_studies_exist(page: Path) -> None:
    for words in commands(page):
        for word in words:
            if word.startswith("experiments/"):
                assert (ROOT / word).is_file(), f"{page.name}: {word}"
    for words in commands(page):
        if words[0] == "train" and "." not in words[1] and "/" not in words[1] and not words[1].isupper():
            assert words[1] in included_names("experiment"), f"{page.name}: train {words[1]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_are_python(page: Path) -> None:
    for kind, text in blocks(page):
        if kind == "python" and ">>>" not in text:
            ast.parse(textwrap.dedent(text))
