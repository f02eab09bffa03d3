"""Graphs against brute force: all that they accept, at what cost."""

from __future__ import annotations

import itertools
import math
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import kaldifst
import numpy as np
import pytest

import damaged_files
from roundelay.errors import DataError
from roundelay.speech.language.decoding_graph import (
    build_ctc_graph,
    build_graph,
    build_linear_ctc_graph,
    build_linear_graph,
    disambiguate,
    from_fst,
    num_arcs,
    read_graph,
)
from roundelay.speech.language.lexicon import Lexicon
from roundelay.speech.language.ngram import BEGIN, END, NgramModel, count, flat, kneser_ney, read_arpa, witten_bell

LEXICON = Lexicon(
    {
        "O": [("ow",)],
        "OH": [("ow",)],  # a homophone
        "NO": [("n", "ow")],
        "NONE": [("n", "ow", "n"), ("n",)],  # NO begins it, and a variant begins NO
    }
)
Key = tuple[tuple[int, ...], tuple[str, ...]]


class Monophones:
    num_senones = 3 * len(LEXICON.phones)

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        return 3 * centre, 3 * centre + 1, 3 * centre + 2


class Triphones:
    """Silence as it is; the others' first state tied by the left phone, the last one by the right."""

    num_senones = 3 + 2 * 7

    def senones(self, left: int, centre: int, right: int) -> tuple[int, int, int]:
        if centre == 0:
            return 0, 1, 2
        base = 3 + 7 * (centre - 1)
        return base + left, base + 3, base + 4 + right


def paths(fst: object, most: int) -> dict[Key, float]:
    """Map all (input sequence, words) of at most ``most`` frames to their least cost."""
    network = from_fst(fst)
    best: dict[Key, float] = {}
    seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], float] = {}
    stack: list[tuple[int, tuple[int, ...], tuple[int, ...], float]] = [(0, (), (), 0.0)]
    while stack:
        state, inputs, outputs, cost = stack.pop()
        if seen.get((state, inputs, outputs), math.inf) <= cost + 1e-9:
            continue
        seen[state, inputs, outputs] = cost
        if state in network.finals:
            key = (inputs, tuple(LEXICON.words[i - 1] for i in outputs))
            best[key] = min(best.get(key, math.inf), cost + network.finals[state])
        for label, output, weight, target in network.arcs[state]:
            longer = (*inputs, label) if label else inputs
            if len(longer) <= most:
                stack.append((target, longer, (*outputs, output) if output else outputs, cost + weight))
    return best


def stretched(senones: Sequence[int], frames: int) -> Iterator[tuple[int, ...]]:
    """List all ways for states to last ``frames`` frames."""
    for cuts in itertools.combinations(range(1, frames), len(senones) - 1):
        bounds = [0, *cuts, frames]
        yield tuple(s + 1 for s, a, b in zip(senones, bounds, bounds[1:], strict=False) for _ in range(b - a))


def spoken(words: Sequence[str]) -> Iterator[tuple[list[int], float]]:
    """List all phone sequences of words, with the cost of the silences."""
    phones = LEXICON.phones.index
    for variants in itertools.product(*(LEXICON[word] for word in words)):
        for pauses in itertools.product([False, True], repeat=len(words) + 1):
            sequence = [0] * pauses[0]
            for variant, pause in zip(variants, pauses[1:], strict=True):
                sequence += [phones(phone) for phone in variant] + [0] * pause
            yield sequence, (len(words) + 1) * math.log(2)


def expected(word_sequences: Iterator[Sequence[str]], tree: Triphones | Monophones, most: int) -> dict[Key, float]:
    """Enumerate what a graph should accept, without the language model's costs."""
    result: dict[Key, float] = {}
    for words in word_sequences:
        for phones, cost in spoken(words):
            context = [0, *phones, 0]
            senones = [s for i in range(len(phones)) for s in tree.senones(*context[i : i + 3])]
            for frames in range(len(senones), most + 1):
                for inputs in stretched(senones, frames) if senones else [()] * (frames == 0):
                    key = (inputs, tuple(words))
                    result[key] = min(result.get(key, math.inf), cost)
    return result


def assert_same(ours: dict[Key, float], theirs: dict[Key, float], tolerance: float = 1e-3) -> None:
    assert ours.keys() == theirs.keys()
    worst = max(abs(ours[key] - theirs[key]) for key in ours)
    assert worst < tolerance


def sequences(longest: int) -> Iterator[tuple[str, ...]]:
    for length in range(longest + 1):
        yield from itertools.product(LEXICON.words, repeat=length)


MODELS = {
    "flat": flat(LEXICON.words),
    "bigram": kneser_ney(count([["O", "NO"], ["NO"], ["NO", "NONE"], ["OH"]], 2), LEXICON.words),
    "trigram": witten_bell(count([["O", "NO", "O"], ["NO", "NO", "NO"], ["NONE", "OH"]], 3), LEXICON.words),
}


def backed_off(model: NgramModel, words: Sequence[str]) -> float:
    """Return the cost of the cheapest way through the grammar: a listed n-gram may also be reached by backing off."""
    costs: dict[tuple[str, ...], float] = {(BEGIN,) if model.order > 1 else (): 0.0}

    def relax() -> None:
        for history in sorted(costs, key=len, reverse=True):
            while history:
                cost = costs[history] - model.backoffs.get(history, 0.0) * math.log(10)
                history = history[1:]
                costs[history] = min(costs.get(history, math.inf), cost)

    histories = {gram[:-1] for gram in model.logprobs} | {()}
    for word in words:
        relax()
        after: dict[tuple[str, ...], float] = {}
        for history, cost in costs.items():
            if (*history, word) in model.logprobs:
                target = (*history, word)
                while target not in histories:
                    target = target[1:]
                total = cost - model.logprobs[*history, word] * math.log(10)
                after[target] = min(after.get(target, math.inf), total)
        costs = after
    relax()
    return min(c - model.logprobs[*h, END] * math.log(10) for h, c in costs.items() if (*h, END) in model.logprobs)


@pytest.mark.parametrize("tree", [Monophones(), Triphones()], ids=["mono", "tri"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_build_accepts_what_it_should(name: str, tree: Monophones | Triphones) -> None:
    model, most = MODELS[name], 7
    ours = paths(build_graph(LEXICON, model, tree), most)
    theirs = expected(sequences(2), tree, most)
    priced = {key: cost + backed_off(model, key[1]) for key, cost in theirs.items()}
    assert_same(ours, priced)
    assert len(ours) > 100


@pytest.mark.parametrize("tree", [Monophones(), Triphones()], ids=["mono", "tri"])
@pytest.mark.parametrize("words", [["O"], ["NONE"], ["NO", "O"], ["O", "NONE"], []])
def test_linear_graph(words: list[str], tree: Monophones | Triphones) -> None:
    most = 10
    ours = paths(build_linear_graph(words, LEXICON, tree), most)
    assert ours
    assert_same(ours, expected(iter([words]), tree, most), 1e-5)


def collapsed(labels: Sequence[int]) -> list[int]:
    return [label - 1 for label, _ in itertools.groupby(labels) if label != 1]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_ctc_accepts_what_collapses_to_words(name: str) -> None:
    model, most = MODELS[name], 4
    ours = paths(build_ctc_graph(LEXICON, model), most)
    theirs: dict[Key, float] = {}
    phones = LEXICON.phones.index
    for words in sequences(4):
        spellings = [
            [phones(phone) for variant in variants for phone in variant]
            for variants in itertools.product(*(LEXICON[word] for word in words))
        ]
        for frames in range(most + 1):
            for labels in itertools.product(range(1, len(LEXICON.phones) + 1), repeat=frames):
                if collapsed(labels) in spellings:
                    theirs[labels, words] = backed_off(model, words)
    assert_same(ours, theirs)


def test_ctc_linear() -> None:
    ours = paths(build_linear_ctc_graph(["O", "OH"], LEXICON), 4)
    theirs = {
        labels
        for frames in range(5)
        for labels in itertools.product((1, 2, 3), repeat=frames)
        if collapsed(labels) == [LEXICON.phones.index("ow")] * 2
    }
    assert {inputs for inputs, _ in ours} == theirs
    assert {words for _, words in ours} == {("O", "OH")}


def test_disambiguation_symbols() -> None:
    marks = disambiguate(LEXICON)
    assert marks["O", ("ow",)] != marks["OH", ("ow",)]
    assert all(marks["NO" if v == ("n", "ow") else "NONE", v] for v in [("n", "ow"), ("n",)])
    assert marks["NONE", ("n", "ow", "n")] == 0


def test_decoding_finds_the_words() -> None:
    import kaldi_decoder

    tree = Triphones()
    graph = build_graph(LEXICON, MODELS["bigram"], tree)
    senones = [s for triple in [tree.senones(0, 1, 2), tree.senones(1, 2, 0)] for s in triple for _ in range(3)]
    scores = np.random.default_rng(0).standard_normal((len(senones), tree.num_senones)).astype(np.float32)
    scores[np.arange(len(senones)), senones] += 8
    decoder = kaldi_decoder.FasterDecoder(graph, kaldi_decoder.FasterDecoderOptions(beam=16.0, max_active=1000))
    decoder.decode(kaldi_decoder.DecodableCtc(scores))
    found, best = decoder.get_best_path()
    _, alignment, words, _ = kaldifst.get_linear_symbol_sequence(best)
    assert found
    assert [LEXICON.words[i - 1] for i in words] == ["NO"]
    assert [label - 1 for label in alignment] == senones


def test_round_trip(tmp_path: Path) -> None:
    graph = build_graph(LEXICON, MODELS["flat"], Monophones())
    graph.write(str(tmp_path / "graph.fst"))
    again = read_graph(tmp_path / "graph.fst")
    assert (again.num_states, num_arcs(again)) == (graph.num_states, num_arcs(graph))
    (tmp_path / "bad.fst").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"bad.fst: not a graph"):
        read_graph(tmp_path / "bad.fst")


@pytest.mark.parametrize("target", [-1, 2])
def test_an_arc_that_leads_nowhere_is_refused(tmp_path: Path, target: int) -> None:
    graph = kaldifst.StdVectorFst()
    graph.start = graph.add_state()
    graph.set_final(graph.add_state(), 0.0)
    for label in (1, 2):
        graph.add_arc(0, kaldifst.StdArc(label, label, 0.5, 1))
    path = tmp_path / "graph.fst"
    graph.write(str(path))
    file = path.read_bytes()
    assert num_arcs(read_graph(path)) == 2
    of_second = file.index(np.array([2, 2], "<i4").tobytes() + np.float32(0.5).tobytes()) + 12
    path.write_bytes(file[:of_second] + np.int32(target).tobytes() + file[of_second + 4 :])
    with pytest.raises(DataError, match=r"graph.fst: not a graph"):
        read_graph(path)


def test_a_model_of_other_words_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match="no word of the lexicon"):
        build_graph(LEXICON, flat(["zebra"]), Monophones())
    assert "lexicon lacks 1 words of the language model: zebra" in caplog.text


@pytest.mark.slow
def test_an4_given_grammar(corpora: Path, caplog: pytest.LogCaptureFixture) -> None:
    lexicon = Lexicon.read(corpora / "an4" / "lexicon.txt")
    graph = build_graph(lexicon, read_arpa(corpora / "an4" / "lm" / "an4.unigram.arpa"), Monophones())
    assert graph.num_states > 100
    assert "NOVEMBER" in caplog.text
    assert "WEAN" in caplog.text


@pytest.mark.parametrize("count", [1 << 27, 1 << 61, (1 << 63) - 1])
@pytest.mark.parametrize("place", ["states", "arcs"])
def test_counts_beyond_the_file_take_no_memory(place: str, count: int, tmp_path: Path) -> None:
    whole = damaged_files.READERS["graph"].sample
    header = whole.index(b"standard") + len("standard")
    at = header + 24 if place == "states" else header + 44
    path = tmp_path / "x.fst"
    path.write_bytes(whole[:at] + count.to_bytes(8, "little") + whole[at + 8 :])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="not a graph that can be read"):
        read_graph(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)  # kB
