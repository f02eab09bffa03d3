"""Tables fit the terminal, and every name is whole."""

from __future__ import annotations

import pytest

from command_line import call
from roundelay import corpora
from roundelay.cli.screen.plain_tables import fits, keep_whole, plain_console, plain_table
from roundelay.models import MODELS
from roundelay.planning.ranking import PAPERS
from roundelay.strategies import STRATEGIES

COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "strategies": (["strategies"], sorted(STRATEGIES)),
    "models": (["models"], sorted(MODELS)),
    "corpora": (["corpus", "list"], list(corpora.names())),
    "plan": (["plan", "laptop", "--no-sensitivity", "--hours", "10"], list(PAPERS)),
    "plan all": (["plan", "laptop", "--no-sensitivity", "--all", "--hours", "100000"], sorted(STRATEGIES)),
}


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_name_is_whole_and_no_line_too_long(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words, names = COMMANDS[name]
    if name.startswith("plan") and columns != 80:
        pytest.skip("a plan takes seconds; one width is enough")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = call(*words).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    said = {word for line in lines for word in line.split()}
    assert [name for name in names if name not in said] == []
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("words", [["strategies"], ["models"], ["corpus", "list"]], ids=" ".join)
def test_wide_tables_have_a_line_per_row(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = {"strategies": sorted(STRATEGIES), "models": sorted(MODELS), "corpus": list(corpora.names())}[words[0]]
    lines = call(*words, "--wide").stdout.splitlines()
    assert all(sum(line.startswith(f"{name} ") for line in lines) == 1 for name in names)
    assert len(lines) <= len(names) + 3


def test_only_text_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    console = plain_console()
    assert console.width == 36
    table = plain_table("name", "meaning")
    table.add_row("a-long-name-in-one-word", "words that do not fit")
    assert fits(console, keep_whole(table))
    with console.capture() as shown:
        console.print(table)
    assert "a-long-name-in-one-word" in shown.get()
    assert not fits(plain_console(), plain_table("x" * 40))


def test_without_a_terminal_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert plain_console().width == 160
    assert plain_console(wide=True).width == 1000
