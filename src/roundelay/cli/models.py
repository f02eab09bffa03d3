"""``roundelay models``: list the models, one line per model, or show one with its settings and presets."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click
import torch

from roundelay.cli.strategies import hyperparameters, plain_console, plain_table
from roundelay.models import MODELS, build_model

INPUTS, OUTPUTS = 40, 2000  # sizes for which parameters are counted
EPILOG = """\b
Examples:
  roundelay models
  roundelay models lstm
  roundelay models --json
"""


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str | None, *, as_json: bool) -> None:
    """List the acoustic models, or show the settings and presets of NAME."""
    if name is not None:
        MODELS.find(name, "model")
        described = describe(name)
        print(json.dumps(described)) if as_json else _show(described)
        return
    everyone = [describe(each) for each in sorted(MODELS.names())]
    print(json.dumps({"models": everyone})) if as_json else _list(everyone)


def describe(name: str) -> dict[str, Any]:
    """Return name, summary, settings and presets of a model as JSON values."""
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
    with torch.device("meta"):
        model = build_model({"name": name, "preset": preset}, INPUTS, OUTPUTS)
    return sum(parameter.numel() for parameter in model.parameters())


def _list(everyone: list[dict[str, Any]]) -> None:
    table = plain_table("model", "what it does", f"parameters (with {INPUTS} features and {OUTPUTS} senones)")
    for each in everyone:
        sizes = ", ".join(f"{name} {p['parameters'] / 1e6:.1f} M" for name, p in each["presets"].items())
        table.add_row(each["name"], each["summary"], sizes)
    plain_console().print(table)


def _show(described: dict[str, Any]) -> None:
    console = plain_console()
    console.print(described["description"] + "\n")
    table = plain_table("setting", "type", "default", "")
    for each in described["settings"]:
        table.add_row(each["name"], each["type"], str(each["default"]), each["meaning"])
    console.print(table)
    console.print()
    table = plain_table("preset", "parameters", "settings")
    for name, preset in described["presets"].items():
        said = ", ".join(f"{key} = {value}" for key, value in preset["settings"].items())
        table.add_row(name, f"{preset['parameters'] / 1e6:.2f} M", said)
    console.print(table)
