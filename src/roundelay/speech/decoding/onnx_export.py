"""Write a run's network as an ONNX file that stands alone, and check that both give the same results.

The file of a run on plain features takes them as `kaldi-native-fbank` makes them: normalisation and context are inside.
Features that are adapted to the speaker, and speaker vectors, need other models: the file of such a run takes them
ready.

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
from torch import Tensor, nn

from roundelay.errors import MissingExtra, NumericalError, import_extra
from roundelay.files import replacing
from roundelay.models import AcousticModel
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.network_scorer import load_network
from roundelay.speech.features.normalisation import FLOOR

INPUT, OUTPUT = "features", "log_posteriors"
AXES = {INPUT: ("batch", "frames", "features"), OUTPUT: ("batch", "scores", "outputs")}
"""Names of the dimensions; batch is 1."""
TOLERANCE = 1e-3
"""Largest difference of log-posteriors, relative to the largest."""
_LENGTHS = (1, 7, 64, 65, 66, 67, 301)
_EXAMPLES = (64, 65, 66)
_OPSET = 17


class StandaloneNetwork(nn.Module):
    """Features of one utterance (1, T, F) to log-posteriors (1, ceil(T / stride), S), as `Scorer` computes them."""

    def __init__(self, model: AcousticModel, *, normalised: bool) -> None:
        super().__init__()
        self.model, self.normalised = model, normalised

    def forward(self, features: Tensor) -> Tensor:
        """Normalise over the utterance, repeat the first and last frame as context, score."""
        if self.normalised:
            mean = features.mean(1, keepdim=True)
            variance = (features - mean).square().mean(1, keepdim=True)
            features = (features - mean) / variance.clamp_min(FLOOR).sqrt()
        parts = [features]
        if self.model.left:  # ONNX cannot expand to nothing
            parts.insert(0, features[:, :1].expand(-1, self.model.left, -1))
        if self.model.right:
            parts.append(features[:, -1:].expand(-1, self.model.right, -1))
        logits: Tensor = self.model(torch.cat(parts, 1))
        return logits.log_softmax(-1)


def export_onnx(run: Path, out: Path | None = None) -> dict[str, Any]:
    """Write ``out`` (RUN/model.onnx by default) and return its description.

    Its input is one utterance (1, T, F) of any length T, its output (1, ceil(T / stride), S).  If ``standalone``, the
    features are log-mel or MFCC as Kaldi computes them, of samples in the range of 16 bits; otherwise those that
    `make_matching_features` makes.
    """
    run = Path(run)
    bundle = Bundle.open(run)
    model = load_network(run, bundle)
    out = Path(out) if out is not None else run / "model.onnx"
    standalone = bundle.kinds == ["plain"] and not bundle.ivectors and not bundle.given_features
    network = StandaloneNetwork(model, normalised=standalone and bundle.normalise != "none").eval()
    about = {
        "standalone": standalone,
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
        "priors": [] if bundle.ctc else [float(f"{prior:.6g}") for prior in bundle.priors],
        "recipe": (run / "settings.toml").read_text(encoding="utf-8"),
    }
    with replacing(out) as partial:
        difference, exporter = _write(network, partial, str(run))
        _describe(partial, about)
    return about | {"file": str(out), "bytes": out.stat().st_size, "difference": difference, "exporter": exporter}


def _write(network: StandaloneNetwork, path: Path, where: str) -> tuple[float, str]:
    """Try exporters and example lengths until one gives a file that is correct for every length."""
    reason = "no exporter took it"
    exporters = {"trace": _trace, "dynamo": _dynamo}
    # Tracing is faster, but cannot export the splicing of frames.
    for name in reversed(exporters) if network.model.framewise else exporters:
        for frames in _EXAMPLES:
            example = torch.randn(1, frames, network.model.inputs)
            try:
                with _quiet():
                    exporters[name](network, example, path)
                return _largest_difference(network, path), name
            except MissingExtra:
                raise
            except Exception as error:
                reason = " ".join(str(error).split())[:200] or type(error).__name__
    raise NumericalError(f"{where}: the model cannot be written as ONNX by torch {torch.__version__}: {reason}")


def _trace(network: StandaloneNetwork, example: torch.Tensor, path: Path) -> None:
    torch.onnx.export(
        network, (example,), str(path), dynamo=False, input_names=[INPUT], output_names=[OUTPUT],
        dynamic_axes={INPUT: {1: "frames"}, OUTPUT: {1: "scores"}}, opset_version=_OPSET,
    )  # fmt: skip


def _dynamo(network: StandaloneNetwork, example: torch.Tensor, path: Path) -> None:
    import_extra("onnxscript", "export")  # torch's exporter needs it, and says so less clearly
    frames = torch.export.Dim("frames", min=2)
    torch.onnx.export(
        network, (example,), str(path), dynamo=True, input_names=[INPUT], output_names=[OUTPUT],
        dynamic_shapes=({1: frames},), external_data=False, verbose=False,
    )  # fmt: skip


def _largest_difference(network: StandaloneNetwork, path: Path) -> float:
    """Compare the file with the model on random inputs of several lengths; raise if they differ."""
    score = runner(path)
    rng = np.random.default_rng(0)
    worst = 0.0
    for frames in _LENGTHS:
        x = (3 * rng.standard_normal((1, frames, network.model.inputs)) + 5).astype(np.float32)
        with torch.inference_mode():
            wanted = network(torch.from_numpy(x)).numpy()
        found = score(x)
        if found.shape != wanted.shape:
            raise NumericalError(f"{frames} frames give {found.shape} instead of {wanted.shape}")
        difference = float(np.abs(found - wanted).max() / max(1.0, float(np.abs(wanted).max())))
        if not difference < TOLERANCE:
            raise NumericalError(f"{frames} frames differ by {difference:g}")
        worst = max(worst, difference)
    return worst


def runner(path: Path) -> Callable[[Any], Any]:
    """Open an exported file with onnxruntime; return a function from features to log-posteriors."""
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
    for value, names in zip([*model.graph.input, *model.graph.output], AXES.values(), strict=True):
        for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if not axis.HasField("dim_value"):
                axis.dim_param = name
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
