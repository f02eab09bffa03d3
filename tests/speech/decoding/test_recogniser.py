"""Words from features, in chunks, by several weights at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import decodable_run
from roundelay.speech.decoding.acoustic_bundle import Bundle
from roundelay.speech.decoding.beam_search import Weights
from roundelay.speech.decoding.grammar import find_grammar
from roundelay.speech.decoding.recogniser import RecognitionPlan, chunks, mean_posterior_chunk, recognise
from roundelay.speech.features.network_inputs import CombinedInputs
from roundelay.speech.preparation.pipeline import open_prepared
from roundelay.speech.worker_pool import WorkerPool

GOOD = Weights(0.3, 0.0, 0.5)


@pytest.fixture(scope="module")
def plan() -> RecognitionPlan:
    run = decodable_run.place() / "run"
    return RecognitionPlan(run, find_grammar(Bundle.open(run), "flat"), (GOOD,))


@pytest.fixture(scope="module")
def inputs() -> CombinedInputs:
    return open_prepared(decodable_run.place() / "data").inputs("test", ["plain"])


def test_words_come_in_the_order_of_the_utterances(plan: RecognitionPlan, inputs: CombinedInputs) -> None:
    told: list[tuple[int, int]] = []
    names = list(reversed(inputs.ids))
    with WorkerPool(1) as workers:
        found = list(recognise(plan, inputs, names, workers, lambda *done: told.append(done)))
    assert [item.utterance for item in found] == names
    said = open_prepared(decodable_run.place() / "data").transcripts("test")
    assert {item.utterance: item.words for item in found} == {name: list(said[name]) for name in names}
    assert told[-1] == (len(names), len(names))
    assert all(item.times == [] and item.alternatives == [] for item in found), "they were not asked for"


def test_other_weights_give_words_too(plan: RecognitionPlan, inputs: CombinedInputs) -> None:
    both = replace(plan, weights=(GOOD, GOOD), times=True, nbest=2)
    with WorkerPool(1) as workers:
        found = list(recognise(both, inputs, inputs.ids, workers))
    for item in found:
        assert item.others == [item.words]
        assert len(item.times) == len(item.words)
        assert item.alternatives[0][1] == item.words


def test_chunks_hold_all_utterances_once(inputs: CombinedInputs) -> None:
    parts = list(chunks(inputs, inputs.ids))
    assert [name for part in parts for name, _ in part] == list(inputs.ids)
    assert list(chunks(inputs, [])) == []


def test_posteriors_add_up_to_the_frames(plan: RecognitionPlan, inputs: CombinedInputs) -> None:
    (chunk,) = chunks(inputs, inputs.ids)
    frames, sums = mean_posterior_chunk(plan, chunk)
    assert frames == sum(len(features) for _, features in chunk)
    np.testing.assert_allclose(sums.sum(), frames, rtol=1e-4)


def test_the_run_is_found_by_its_path(plan: RecognitionPlan, tmp_path: Path) -> None:
    copy = decodable_run.copy_run(tmp_path)
    assert find_grammar(Bundle.open(copy), "flat").graph.is_relative_to(copy)
    assert plan.grammar.graph.is_relative_to(plan.run)
