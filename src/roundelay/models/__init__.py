"""Acoustic models, one file each, and their registry for experiments, command line and tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundelay import config
from roundelay.errors import SettingsError, suggest
from roundelay.models.base import AcousticModel, ModelSettings
from roundelay.models.cldnn import CLDNNSettings
from roundelay.models.conformer import ConformerSettings
from roundelay.models.dnn import DNNSettings
from roundelay.models.lstm import LSTMSettings
from roundelay.models.tdnn import TDNNSettings
from roundelay.plugins import Registry, is_loaded

__all__ = ["MODELS", "AcousticModel", "ModelSettings", "build_model", "check_readable", "model_settings"]

_KINDS: dict[str, type[ModelSettings]] = {
    "cldnn": CLDNNSettings,
    "conformer": ConformerSettings,
    "dnn": DNNSettings,
    "lstm": LSTMSettings,
    "tdnn": TDNNSettings,
}
MODELS = Registry(ModelSettings, _KINDS, "roundelay.models")
"""By the name that an experiment gives."""


def model_settings(table: Mapping[str, Any], where: str = "model") -> ModelSettings:
    """Return the settings of a table ``{"name": ..., "preset": ..., ...}``; other keys override the preset."""
    given = dict(table)
    preset = given.pop("preset", None)
    kind = MODELS.look_up(given.get("name"))
    if preset is not None and kind is not None:
        if preset not in kind.presets:
            raise SettingsError(f"{where}.preset: unknown {suggest(str(preset), kind.presets)}")
        given = dict(kind.presets[preset]) | given
    return config.build_named(MODELS, given, where)


def check_readable(table: Mapping[str, Any], where: str) -> None:
    """Raise if making a run's model would execute a file that this process was not told to execute."""
    name = str(table.get("name"))
    if config.is_file_name(name) and not is_loaded(name):
        file = name.rpartition(":")[0]
        raise SettingsError(f"{where}: {name}: reading a run executes no file; if you trust it, use --load {file}")


def build_model(table: Mapping[str, Any], inputs: int, outputs: int, where: str = "model") -> AcousticModel:
    """Return a model; its initial weights are drawn from torch's generator, so seed that first."""
    settings = model_settings(table, where)
    try:
        return settings.build(inputs, outputs)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
