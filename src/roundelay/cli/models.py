"""``roundelay models``: list the models, one line per model, or show one with its settings and presets."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click

from roundelay.cli.screen.plain_tables import keep_whole, plain_console, plain_table, wide_option
from roundelay.cli.strategies import hyperparameters

INPUTS, OUTPUTS = 40, 2000  # sizes for which parameters are counted
EPILOG = """\b
Examples:
  roundelay models
  roundelay models lstm
  roundelay models --json
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str | None, *, wide: bool, as_json: bool) -> None:
    """List the acoustic models, or show the settings and presets of NAME."""
    from roundelay.models import MODELS

    if name is not None:
        MODELS.find(name, "model")
        described = describe(name)
        print(json.dumps(described)) if as_json else _show(described, wide=wide)
        return
    everyone = [describe(each) for each in sorted(MODELS.names())]
    print(json.dumps({"models": everyone})) if as_json else _list(everyone, wide=wide)


def describe(name: str) -> dict[str, Any]:
    """Return name, summary, settings and presets of a model as JSON values."""
    from roundelay.models import MODELS

    kind = MODELS[name]
    text = inspect.getdoc(kind) or ""
    return {
        "name": name,
        "summary": text.partition("\n")[0],
        "description": text,
        "settings": hyperparameters(kind),
        "presets": {
            preset: {"settings": settings, "parameters": _parameters(name, preset)}
            for preset, settings in kind.presets.items()
        },
    }


def _parameters(name: str, preset: str) -> int:
    """Count the parameters without allocating them."""
    import torch

    from roundelay.models import build_model

    with torch.device("meta"):
        model = build_model({"name": name, "preset": preset}, INPUTS, OUTPUTS)
    return sum(parameter.numel() for parameter in model.parameters())


def _list(everyone: list[dict[str, Any]], *, wide: bool) -> None:
    console = plain_console(wide=wide)
    table = plain_table("model", "what it does", "presets and their parameters")
    for each in everyone:
        sizes = [f"{name} {_size(preset['parameters'])}" for name, preset in each["presets"].items()]
        table.add_row(each["name"], each["summary"].replace("``", "'"), (", " if wide else "\n").join(sizes))
    console.print(keep_whole(table))
    console.print(f"Parameters are counted with {INPUTS} features and {OUTPUTS} senones.")


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"


def _show(described: dict[str, Any], *, wide: bool) -> None:
    console = plain_console(wide=wide)
    for paragraph in described["description"].split("\n\n"):
        console.print(" ".join(paragraph.split("\n")) + "\n")
    table = plain_table("setting", "type", "default", "")
    for each in described["settings"]:
        table.add_row(each["name"], each["type"], str(each["default"]), each["meaning"])
    console.print(keep_whole(table))
    console.print()
    table = plain_table("preset", "parameters", "settings", names=2)
    for name, preset in described["presets"].items():
        said = ", ".join(f"{key} = {value}" for key, value in preset["settings"].items())
        table.add_row(name, _size(preset["parameters"]), said)
    console.print(keep_whole(table))
