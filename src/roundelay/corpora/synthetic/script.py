"""The script of the synthetic corpus: sentences and speakers, as a pure function of the seed and a number.

A *take* is one sentence by one speaker.  It gives a clean utterance, and every other take also gives a noisy copy with
the same timing.  Takes are assigned to shards by number, so the result does not depend on the number of processes.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cache

from roundelay.corpora.espeak import Voice
from roundelay.corpora.synthetic import sentences
from roundelay.corpora.synthetic.noise import NOISES, ROOMS

SHARES = {"train": 0.75, "dev": 0.10, "test": 0.15}
"""Share of the hours per split."""
SNRS = (20, 10, 5)
"""Signal-to-noise ratios of the noisy copies in decibels, used in turn."""
TAKES_PER_SHARD = 120

_ACCENTS = ("en-us", "en", "en-us-nyc", "en-gb-x-rp")
# Each variant gives the same samples in new processes.  Variants with a "breath" line in their definition do not: f2,
# f3, f5, Alicia, caleb, sandro, victor, whisper and a few more.
_VARIANTS = {
    "train": "f1 m1 Andy Annie m3 Alex belinda m4 Gene Andrea m6 Gene2 iven m7 adam aunty david Hugo linda benjamin Lee"
    " steph Denis Marco anika ed john shelby max Diogo grandma norbert paul steph3 quincy robert",
    "dev": "f4 m5 edward Jacky Mike rob",
    "test": "m2 steph2 Mario m8 Michael travis",
}


@dataclass(frozen=True)
class Speaker:
    """A synthetic speaker and the split that it belongs to."""

    name: str
    split: str
    voice: Voice


@dataclass(frozen=True)
class Take:
    """One sentence by one speaker, and the noise of its copy."""

    number: int
    speaker: Speaker
    words: tuple[str, ...]
    snr: int | None
    """Signal-to-noise ratio of the noisy copy in decibels; None if there is no copy."""
    noise: str
    room: str
    lead_seconds: float
    trail_seconds: float
    level: float
    """Loudness of the speech in decibels below full scale."""

    @property
    def id(self) -> str:
        """The clean utterance's id."""
        return f"{self.speaker.name}-{self.number:06d}"

    @property
    def noisy_id(self) -> str:
        """The noisy copy's id."""
        return f"{self.id}-snr{self.snr or 0:02d}"

    @property
    def num_utterances(self) -> int:
        """Number of utterances of the take."""
        return 1 if self.snr is None else 2


@dataclass(frozen=True)
class ScriptShard:
    """Takes of one split, from ``begin`` up to ``end``, made by one process."""

    number: int
    split: str
    begin: int
    end: int


@cache
def list_speakers(split: str) -> tuple[Speaker, ...]:
    """List a split's speakers; they do not depend on the seed."""
    before = sum(len(_VARIANTS[name].split()) for name in itertools.takewhile(lambda name: name != split, _VARIANTS))
    return tuple(_speaker(before + i, split, variant) for i, variant in enumerate(_VARIANTS[split].split()))


def _speaker(number: int, split: str, variant: str) -> Speaker:
    # a step that shares no factor with the range visits every value before it repeats one
    voice = Voice(
        name=f"{_ACCENTS[number % len(_ACCENTS)]}+{variant}",
        rate=140 + number * 17 % 46,
        pitch=38 + number * 11 % 25,
        range=40 + number * 7 % 23,
    )
    return Speaker(f"s{number:02d}{variant.lower()}", split, voice)


def plan_take(seed: int, split: str, number: int) -> Take:
    """Return a split's take of that number."""
    rng = random.Random(f"{seed} {split} {number}")  # noqa: S311 (nothing secret)
    people = list_speakers(split)
    turn = number // len(people) + number % len(people)  # each speaker gets every kind in turn, with different starts
    return Take(
        number=number,
        speaker=people[number % len(people)],
        words=sentences.make_sentence(rng),
        snr=None if turn % 2 else SNRS[turn // 2 % len(SNRS)],
        noise=rng.choice([*NOISES, "babble"]),
        room=rng.choice(list(ROOMS)),
        lead_seconds=rng.uniform(0.10, 0.35),
        trail_seconds=rng.uniform(0.10, 0.35),
        level=rng.uniform(-30.0, -20.0),
    )


def spoken_text(words: tuple[str, ...]) -> str:
    """Write words so that espeak-ng speaks them correctly: the letter A is not the article."""
    return " ".join("eigh" if word == "A" else word if len(word) == 1 else word.lower() for word in words)


def plan_shards(hours: float, seed: int) -> list[ScriptShard]:
    """Divide the corpus into shards; each split gets its share of the hours."""
    found: list[ScriptShard] = []
    for split, share in SHARES.items():
        count = _num_takes(hours * share * 3600, seed, split)
        for begin in range(0, count, TAKES_PER_SHARD):
            found.append(ScriptShard(len(found), split, begin, min(begin + TAKES_PER_SHARD, count)))
    return found


def _num_takes(seconds: float, seed: int, split: str) -> int:
    """Count the takes, at least one, whose utterances last ``seconds``."""
    total = 0.0
    for number in itertools.count():
        planned = plan_take(seed, split, number)
        total += planned.num_utterances * estimate_seconds(planned)
        if total >= seconds:
            return number + 1
    raise AssertionError("endless")


def estimate_seconds(take: Take) -> float:
    """Estimate an utterance's length before it is spoken (fitted to 4800 utterances; mean error 2 %)."""
    letters = sum(len(word) for word in take.words)
    speech = 0.034 + 0.116 * len(take.words) + 0.0474 * letters
    return take.lead_seconds + take.trail_seconds + speech * 160 / take.speaker.voice.rate
