"""The language model and its graphs: which words can be recognised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tone_corpus
from roundelay.speech.language.ngram import END, flat
from roundelay.speech.preparation.data_summary import summary_lines
from roundelay.speech.preparation.language_stage import restrict_vocabulary
from roundelay.speech.preparation.pipeline import LexiconSettings, prepare
from roundelay.speech.preparation.prepared_data import PreparedData


def recognisable(data: PreparedData, name: str) -> set[str]:
    """List the words on a graph's arcs."""
    import kaldifst

    graph = data.graph(name)
    labels = {arc.olabel for state in kaldifst.StateIterator(graph) for arc in kaldifst.ArcIterator(graph, state)}
    return {data.lexicon.words[label - 1] for label in labels if label}


@pytest.fixture
def open_corpus(tmp_path: Path) -> Path:
    """A corpus where a word, AS, is said in dev only."""
    corpus = tone_corpus.make(tmp_path / "corpus", train=12, dev=4)
    text = corpus / "train" / "text"
    text.write_text(text.read_text().replace("AS", "MA"))
    assert "AS" in (corpus / "dev" / "text").read_text()
    return corpus


def test_given_words_are_recognised_and_others_only_aligned(open_corpus: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "data", {"SEE", "MA", "ME"}
    outcome = prepare(open_corpus, out, tone_corpus.SETTINGS)
    assert recognisable(outcome.data, "bigram") == recognisable(outcome.data, "flat") == {*said, "AS"}
    assert outcome.summary["vocabulary"]["just_the_transcripts"]
    assert outcome.summary["vocabulary"]["unrecognisable"]["dev"]["words"] == []
    train = replace(tone_corpus.SETTINGS, lexicon=LexiconSettings(vocabulary="train"))
    outcome = prepare(open_corpus, out, train)
    assert outcome.done == ["graph", "summary"]
    assert recognisable(outcome.data, "bigram") == recognisable(outcome.data, "flat") == said
    assert outcome.data.vocabulary == sorted(said)
    assert outcome.summary["splits"]["dev"]["aligned"] == 4
    found = outcome.summary["vocabulary"]
    assert not found["just_the_transcripts"]
    assert found["unrecognisable"]["dev"]["words"] == ["AS"]
    tokens = (open_corpus / "dev" / "text").read_text().split().count("AS")
    assert found["unrecognisable"]["dev"]["tokens"] == tokens
    assert any(line.startswith(f"  dev: 1 words ({tokens} of 12 said)") for line in summary_lines(outcome.summary))


def test_a_dictionary_pronounces_but_does_not_reveal_held_out_words(open_corpus: Path, tmp_path: Path) -> None:
    (open_corpus / "lexicon.txt").rename(tmp_path / "dictionary.txt")
    settings = replace(tone_corpus.SETTINGS, lexicon=LexiconSettings(dictionary=tmp_path / "dictionary.txt"))
    outcome = prepare(open_corpus, tmp_path / "data", settings)
    assert "AS" in outcome.data.lexicon
    assert recognisable(outcome.data, "bigram") == {"SEE", "MA", "ME"}


def test_a_given_language_model_is_limited() -> None:
    model = restrict_vocabulary(flat(["A", "B", "C"]), ["A", "C"])
    assert model.vocabulary == ["A", "C"]
    assert (END,) in model.logprobs
