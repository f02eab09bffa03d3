"""Prepared data whose bytes have changed are found when they are read, and preparing again makes them again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import decodable_run
from roundelay.errors import DataError
from roundelay.experiment.run_training import train
from roundelay.speech.decoding.split_decoding import decode_run
from roundelay.speech.preparation.alignment_export import export_alignments
from roundelay.speech.preparation.data_summary import check_prepared
from roundelay.speech.preparation.pipeline import prepare
from roundelay.speech.preparation.prepared_data import open_prepared

EXPERIMENT: dict[str, Any] = {
    "task": {"name": "acoustic", "model": decodable_run.MODEL},
    "budget": {"minibatches": 20},
    "learners": 2,
}
FILES = {  # with the stage that makes each
    "features/train/shard-00000.raw": "features",
    "features/dev/shard-00000.raw": "features",
    "features/train/index.json": "features",
    "alignments/train/senones/shard-00000.raw": "alignment",
    "lexicon.txt": "lexicon",
    "tree.safetensors": "hmm",
    "graphs/flat.fst": "graph",
    "prepared.json": "",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that each test spoils and mends."""
    folder = tmp_path_factory.mktemp("damaged") / "data"
    shutil.copytree(decodable_run.place() / "data", folder)
    return folder


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 64
    path.write_bytes(content)


@pytest.mark.parametrize("name", sorted(FILES))
def test_training_names_the_file_and_preparing_makes_it_again(name: str, data: Path, tmp_path: Path) -> None:
    whole = (data / name).read_bytes()
    spoil(data / name)
    with pytest.raises(DataError, match=f"{name}: damaged: .*; run roundelay prepare again"):
        train(EXPERIMENT, tmp_path / "run", data=data, on="simulator")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    done = prepare(decodable_run.place() / "corpus", data, decodable_run.SETTINGS).done
    assert done == ([FILES[name]] if FILES[name] else [])
    if name != "prepared.json":  # it has the seconds of each stage
        assert (data / name).read_bytes() == whole
    assert not [problem for problem in check_prepared(data)["problems"] if "damaged" in problem]


def test_whole_data_are_trained_on(data: Path, tmp_path: Path) -> None:
    assert prepare(decodable_run.place() / "corpus", data, decodable_run.SETTINGS).done == []
    train(EXPERIMENT, tmp_path / "run", data=data, on="simulator")
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_decoding_keeps_no_result_of_damaged_features(data: Path, tmp_path: Path) -> None:
    run = decodable_run.copy_run(tmp_path)
    spoil(data / "features" / "test" / "shard-00000.raw")
    with pytest.raises(DataError, match=r"features/test/shard-00000.raw: damaged: "):
        decode_run(run, data, language="flat", settings=decodable_run.FIXED)
    assert not list(run.glob("decode/*/wer.json"))
    spoil(data / "features" / "test" / "shard-00000.raw")  # the same bit again


def test_an_export_of_damaged_alignments_is_refused(data: Path) -> None:
    path = data / "alignments" / "dev" / "words" / "shard-00000.raw"
    spoil(path)
    with pytest.raises(DataError, match=r"words/shard-00000.raw: damaged: "):
        export_alignments(open_prepared(data), "ctm")
    spoil(path)


@pytest.mark.parametrize("name", ["model.safetensors", "acoustic/lexicon.txt", "acoustic/graphs/flat.fst"])
def test_a_damaged_model_graph_or_lexicon_of_a_run_is_refused(name: str, tmp_path: Path) -> None:
    run = decodable_run.copy_run(tmp_path)
    spoil(run / name)
    with pytest.raises(DataError, match=name):
        decode_run(run, decodable_run.place() / "data", language="flat", settings=decodable_run.FIXED)
