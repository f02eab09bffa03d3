"""What a run takes along of its data: whole, without the data's own place, and checked when opened."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tone_corpus
from roundelay.errors import DataError, SettingsError
from roundelay.speech.decoding.acoustic_bundle import Bundle, write_bundle
from roundelay.speech.preparation.language_stage import LanguageSettings
from roundelay.speech.preparation.pipeline import IvectorSettings, prepare
from roundelay.speech.preparation.prepared_data import PreparedData, open_prepared


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    settings = replace(
        tone_corpus.SETTINGS, language=LanguageSettings(ctc=True), ivectors=IvectorSettings(4, num_gaussians=4)
    )
    prepare(tone_corpus.make(folder / "corpus"), folder / "data", settings)
    return folder / "data"


@pytest.fixture
def prepared(data: Path) -> PreparedData:
    return open_prepared(data)


def test_it_holds_what_decoding_needs_without_the_data(prepared: PreparedData, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(prepared.folder, copy)
    write_bundle(open_prepared(copy), tmp_path / "run", kinds=["plain"], ivectors=True)
    (tmp_path / "run").rename(tmp_path / "moved")
    shutil.rmtree(copy)
    bundle = Bundle.open(tmp_path / "moved")
    bundle.verify()
    assert bundle.digest == prepared.digest
    assert bundle.feature_settings == prepared.feature_settings
    assert (bundle.normalise, bundle.kinds, bundle.ivectors, bundle.ctc) == ("speaker", ["plain"], True, False)
    assert bundle.inputs == prepared.feature_settings.dim + 4
    assert bundle.outputs == bundle.tree.num_senones == prepared.num_senones
    np.testing.assert_allclose(bundle.priors, prepared.priors())
    assert bundle.lexicon.pronunciations == prepared.lexicon.pronunciations
    assert bundle.vocabulary == prepared.vocabulary
    assert bundle.languages == ["bigram", "flat"]
    assert bundle.graph("bigram").num_states == prepared.graph("bigram").num_states
    assert not bundle.data.exists()


def test_its_data_are_found_when_both_were_moved(prepared: PreparedData, tmp_path: Path) -> None:
    shutil.copytree(prepared.folder, tmp_path / "here" / "data")
    write_bundle(open_prepared(tmp_path / "here" / "data"), tmp_path / "here" / "runs" / "one")
    (tmp_path / "here").rename(tmp_path / "there")
    assert open_prepared(Bundle.open(tmp_path / "there" / "runs" / "one").data).digest == prepared.digest


def test_ctc_has_graphs_and_outputs_of_its_own(prepared: PreparedData, tmp_path: Path) -> None:
    write_bundle(prepared, tmp_path, objective="ctc")
    bundle = Bundle.open(tmp_path)
    assert bundle.outputs == len(prepared.lexicon.phones)
    assert bundle.languages == ["bigram", "flat"]
    assert bundle.graph_path("flat").name == "flat-ctc.fst"


def test_it_says_what_was_trained_on(prepared: PreparedData, tmp_path: Path) -> None:
    write_bundle(prepared, tmp_path / "usual")
    write_bundle(prepared, tmp_path / "all", train=["train", "dev"])
    sizes = {name: len(prepared.utterances(name)) for name in ("train", "dev")}
    usual, more = (Bundle.open(tmp_path / name).description for name in ("usual", "all"))
    assert (usual["train_splits"], usual["trained_on"]) == (["train"], {"train": sizes["train"]})
    assert (more["train_splits"], more["trained_on"]) == (["train", "dev"], sizes)


def test_writing_again_changes_nothing_unless_the_data_did(prepared: PreparedData, tmp_path: Path) -> None:
    write_bundle(prepared, tmp_path)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "acoustic").rglob("*")}
    write_bundle(prepared, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "acoustic").rglob("*")} == files
    write_bundle(prepared, tmp_path, ivectors=True)
    assert Bundle.open(tmp_path).ivectors


def test_what_the_data_lack_is_refused_before_anything_is_written(prepared: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prepared without adapted; prepare the data with --adapt"):
        write_bundle(prepared, tmp_path, kinds=["plain", "adapted"])
    with pytest.raises(SettingsError, match="unknown objective 'cct'; did you mean 'ctc'"):
        write_bundle(prepared, tmp_path, objective="cct")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run(prepared: PreparedData, tmp_path: Path) -> Path:
    write_bundle(prepared, tmp_path / "run")
    return tmp_path / "run"


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no trained acoustic model"):
        Bundle.open(tmp_path)


def test_a_file_that_did_not_arrive_is_named(run: Path) -> None:
    path = run / "acoustic" / "graphs" / "flat.fst"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"flat.fst: is incomplete; copy the run again"):
        Bundle.open(run)
    path.unlink()
    with pytest.raises(DataError, match=r"flat.fst: is missing; copy the run again"):
        Bundle.open(run)


def test_a_changed_byte_is_found_by_verifying(run: Path) -> None:
    path = run / "acoustic" / "tree.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="changed since the run was trained"):
        Bundle.open(run).verify()


@pytest.mark.parametrize(
    "change", [{"features": {"fast": 1}}, {"kinds": ["fast"]}, {"files": {"lexicon.txt": 3}}, {"features": None}]
)
def test_a_damaged_description_is_refused_in_one_line(change: dict[str, object], run: Path) -> None:
    path = run / "acoustic" / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=r"bundle.json: damaged: .*; copy the run again"):
        Bundle.open(run)


def test_a_lexicon_that_lost_a_phone_is_named(run: Path) -> None:
    path = run / "acoustic" / "lexicon.txt"
    path.write_text(path.read_text().replace(" S", " M"))  # as long as before, so that the size does not tell
    with pytest.raises(DataError, match=r"lexicon.txt: 'S' is missing"):
        _ = Bundle.open(run).lexicon


def test_an_unknown_language_is_named(run: Path) -> None:
    with pytest.raises(DataError, match="unknown language 'bigam'; did you mean 'bigram'"):
        Bundle.open(run).graph("bigam")


def test_ctc_without_its_graphs_is_named(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    for path in (tmp_path / "data" / "graphs").glob("*-ctc.fst"):
        path.unlink()
    write_bundle(open_prepared(tmp_path / "data"), tmp_path / "run", objective="ctc")
    with pytest.raises(DataError, match="no CTC graph; prepare the data with --ctc"):
        Bundle.open(tmp_path / "run").graph("flat")
