"""Write a run's network as an ONNX file, and check that both give the same results.

Legend: T frames, F features, S outputs.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roundelay.errors import MissingExtra, NumericalError, import_extra
from roundelay.files import replacing
from roundelay.models import AcousticModel
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.network_scorer import load_network

INPUT, OUTPUT = "features", "logits"
TOLERANCE = 1e-3
"""Largest difference of logits, relative to the largest logit."""
_LENGTHS = (1, 7, 64, 65, 66, 67, 301)
_EXAMPLES = (64, 65, 66)
_OPSET = 17


def export_onnx(run: Path, out: Path | None = None) -> dict[str, Any]:
    """Write ``out`` (RUN/model.onnx by default) and return its description.

    Its input is one utterance (1, left + T + right, F): features as made by `make_matching_features`, with the first
    and last frame repeated as context.  Its output is (1, ceil(T / stride), S).  T is any length.
    """
    run = Path(run)
    bundle = Bundle.open(run)
    model = load_network(run, bundle)
    out = Path(out) if out is not None else run / "model.onnx"
    about = {
        "left": model.left,
        "right": model.right,
        "stride": model.stride,
        "inputs": model.inputs,
        "outputs": model.outputs,
        "objective": bundle.objective,
        "features": bundle.description["features"],
        "normalise": bundle.normalise,
        "kinds": bundle.kinds,
        "ivectors": bundle.ivectors,
    }
    with replacing(out) as partial:
        difference, exporter = _write(model, partial, str(run))
        _describe(partial, about)
    return about | {"file": str(out), "bytes": out.stat().st_size, "difference": difference, "exporter": exporter}


def _write(model: AcousticModel, path: Path, where: str) -> tuple[float, str]:
    """Try exporters and example lengths until one gives a file that is correct for every length."""
    reason = "no exporter took it"
    exporters = {"trace": _trace, "dynamo": _dynamo}
    # Tracing is faster, but cannot export the splicing of frames.
    for name in reversed(exporters) if model.framewise else exporters:
        for frames in _EXAMPLES:
            example = torch.randn(1, model.left + frames + model.right, model.inputs)
            try:
                with _quiet():
                    exporters[name](model, example, path)
                return _largest_difference(model, path), name
            except MissingExtra:
                raise
            except Exception as error:
                reason = " ".join(str(error).split())[:200] or type(error).__name__
    raise NumericalError(f"{where}: the model cannot be written as ONNX by torch {torch.__version__}: {reason}")


def _trace(model: AcousticModel, example: torch.Tensor, path: Path) -> None:
    torch.onnx.export(
        model, (example,), str(path), dynamo=False, input_names=[INPUT], output_names=[OUTPUT],
        dynamic_axes={INPUT: {1: "frames"}, OUTPUT: {1: "scores"}}, opset_version=_OPSET,
    )  # fmt: skip


def _dynamo(model: AcousticModel, example: torch.Tensor, path: Path) -> None:
    import_extra("onnxscript", "export")  # torch's exporter needs it, and says so less clearly
    frames = torch.export.Dim("frames", min=model.left + model.right + 2)
    torch.onnx.export(
        model, (example,), str(path), dynamo=True, input_names=[INPUT], output_names=[OUTPUT],
        dynamic_shapes=({1: frames},), external_data=False, verbose=False,
    )  # fmt: skip


def _largest_difference(model: AcousticModel, path: Path) -> float:
    """Compare the file with the model on random inputs of several lengths; raise if they differ."""
    score = runner(path)
    rng = np.random.default_rng(0)
    worst = 0.0
    for frames in _LENGTHS:
        x = rng.standard_normal((1, model.left + frames + model.right, model.inputs)).astype(np.float32)
        with torch.inference_mode():
            wanted = model(torch.from_numpy(x)).numpy()
        found = score(x)
        if found.shape != wanted.shape:
            raise NumericalError(f"{frames} frames give {found.shape} instead of {wanted.shape}")
        difference = float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))
        if not difference < TOLERANCE:
            raise NumericalError(f"{frames} frames differ by {difference:g}")
        worst = max(worst, difference)
    return worst


def runner(path: Path) -> Callable[[Any], Any]:
    """Open an exported file with onnxruntime; return a function from features to logits."""
    onnxruntime = import_extra("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run([OUTPUT], {INPUT: x})[0]


def _describe(path: Path, about: dict[str, Any]) -> None:
    """Write the description into the file's metadata."""
    onnx = import_extra("onnx", "export")
    model = onnx.load(str(path))
    for name, value in about.items():
        model.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporters' output; the result is checked afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
