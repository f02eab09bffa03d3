"""``roundelay export``: write a trained model in another format."""

from __future__ import annotations

import json
from pathlib import Path

import click

from roundelay.errors import SettingsError

EPILOG = """\b
Examples:
  roundelay export runs/an4-dnn --onnx
  roundelay export runs/an4-dnn --onnx --out an4.onnx --json
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--onnx", is_flag=True, help="Write the acoustic model as ONNX.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default: RUN/model.onnx.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: Path, onnx: bool, out: Path | None, as_json: bool) -> None:
    """Write RUN's acoustic model in another format, and check it by running it.

    The ONNX file takes one utterance's features, (1, frames, features), and gives log-posteriors.  If the run was
    trained on plain features, these are as kaldi-native-fbank makes them: examples/onnx_decode.py decodes with them.
    How features are made, the priors and the settings of the run are in its metadata.
    """
    from rich.console import Console

    from roundelay.speech.decoding.onnx_export import export_onnx

    if not onnx:
        raise SettingsError("export: no format given; use --onnx")
    console = Console(stderr=True)
    with console.status("writing and checking") if console.is_terminal else console:
        about = export_onnx(run, out)
    if as_json:
        print(json.dumps(about))
        return
    print(
        f"{about['file']}: {about['bytes'] / 1e6:.1f} MB, {about['inputs']} features to {about['outputs']} outputs; "
        f"differs from the run's model by at most {about['difference']:.1e} of the largest log-posterior"
    )
    if not about["standalone"]:
        print(
            "it needs features that only Roundelay makes (adapted, with speaker vectors, or given); a run with "
            "--set 'task.kinds=[\"plain\"]' gives a file that stands alone"
        )
