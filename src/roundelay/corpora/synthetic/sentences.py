"""Sentences of the synthetic corpus: spelled words, numbers, dates, amounts and short commands.

There are about 110 words, and no two sound alike.  Spelled words are few, since letters are the hardest.  Some pairs of
words are avoided ("in the", "on the", "of the"): espeak-ng speaks them as one word, so the second would have no
pronunciation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

DIGITS = ["ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE"]
TEENS = ["TEN", "ELEVEN", "TWELVE", "THIRTEEN", "FOURTEEN", "FIFTEEN", "SIXTEEN", "SEVENTEEN", "EIGHTEEN", "NINETEEN"]
TENS = ["TWENTY", "THIRTY", "FORTY", "FIFTY", "SIXTY", "SEVENTY", "EIGHTY", "NINETY"]
MONTHS = [
    *("JANUARY", "FEBRUARY", "MARCH", "APRIL", "MAY", "JUNE"),
    *("JULY", "AUGUST", "SEPTEMBER", "OCTOBER", "NOVEMBER", "DECEMBER"),
]
DAYS = ["MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY"]
ROOMS = ["KITCHEN", "BEDROOM", "GARDEN", "OFFICE"]
SWITCHED = ["LIGHT", "RADIO", "HEATING", "MUSIC"]
MOVED = ["WINDOW", "DOOR"]
PEOPLE = ["ALICE", "PETER", "MARTHA", "ROBERT"]
SPELLED = [*PEOPLE, "RADIO", "LIGHT", "DOOR", "MUSIC"]
LETTERS = sorted(set("".join(SPELLED)))
SHORT = ["YES", "NO", "HELP", "STOP", "CANCEL", "REPEAT", "GO BACK", "START AGAIN"]


def make_sentence(rng: random.Random) -> tuple[str, ...]:
    """Make one random sentence."""
    kinds = [kind for kind, _ in _KINDS]
    weights = [weight for _, weight in _KINDS]
    return tuple(" ".join(rng.choices(kinds, weights)[0](rng)).split())


def vocabulary() -> frozenset[str]:
    """Return all words that a sentence may have."""
    lists = [DIGITS, TEENS, TENS, MONTHS, DAYS, LETTERS, ROOMS, SWITCHED, MOVED, PEOPLE, SHORT, [_REST]]
    return frozenset(word for words in lists for entry in words for word in entry.split())


_REST = (
    "HUNDRED AND POINT THE ON OFF UP DOWN NEXT DOLLARS CENTS PERCENT DEGREES MINUTES HOURS"
    " SPELL TURN SWITCH SET TIMER OPEN CLOSE CALL PLAY NUMBER TEMPERATURE VOLUME PLEASE NOW"
)


def _below_hundred(rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.3:
        return [rng.choice(DIGITS[1:])]
    if kind < 0.55:
        return [rng.choice(TEENS)]
    return [rng.choice(TENS), *([rng.choice(DIGITS[1:])] if rng.random() < 0.7 else [])]


def _number(rng: random.Random) -> list[str]:
    words = _below_hundred(rng)
    return words if rng.random() < 0.5 else [rng.choice(DIGITS[1:]), "HUNDRED", "AND", *words]


def _digits(rng: random.Random) -> list[str]:
    return ["NUMBER", *(rng.choice(DIGITS) for _ in range(rng.randint(3, 6)))]


def _date(rng: random.Random) -> list[str]:
    month, kind = rng.choice(MONTHS), rng.random()
    if kind < 0.4:
        return [rng.choice(DAYS), month, *_day(rng)]
    if kind < 0.65:
        return [month, *_day(rng)]
    if kind < 0.85:
        return [month, "NINETEEN", rng.choice(TENS), rng.choice(DIGITS[1:])]
    return ["NEXT", rng.choice(DAYS)]


def _day(rng: random.Random) -> list[str]:
    day = rng.randint(1, 31)
    if day < 20:
        return [(DIGITS + TEENS)[day]]
    return [TENS[day // 10 - 2], *([DIGITS[day % 10]] if day % 10 else [])]


def _amount(rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.3:
        return [*_number(rng), "DOLLARS", "AND", *_below_hundred(rng), "CENTS"]
    if kind < 0.7:
        return [*_number(rng), "DOLLARS"]
    return [*_below_hundred(rng), "POINT", rng.choice(DIGITS), "PERCENT"]


def _spelled(rng: random.Random) -> list[str]:
    word = rng.choice(SPELLED)
    return ["SPELL", word, *word] if rng.random() < 0.6 else [*word]


def _switch(rng: random.Random) -> list[str]:
    verb, thing = rng.choice(("TURN", "SWITCH")), rng.choice(SWITCHED)
    where = [rng.choice(ROOMS)] if rng.random() < 0.4 else []
    return [verb, "THE", *where, thing, rng.choice(("ON", "OFF"))]


def _move(rng: random.Random) -> list[str]:
    return [rng.choice(("OPEN", "CLOSE")), "THE", rng.choice(ROOMS), rng.choice(MOVED)]


def _set(rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.4:
        return ["SET", "THE", "TIMER", *_below_hundred(rng), rng.choice(("MINUTES", "HOURS"))]
    if kind < 0.7:
        return ["SET", "THE", "TEMPERATURE", *_below_hundred(rng), "DEGREES"]
    return ["TURN", rng.choice(("UP", "DOWN")), "THE", rng.choice(("VOLUME", "HEATING", "MUSIC"))]


def _call(rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.6:
        return ["CALL", rng.choice(PEOPLE), *([rng.choice(("NOW", "PLEASE"))] if rng.random() < 0.5 else [])]
    return ["PLAY", "THE", rng.choice(("MUSIC", "RADIO"))]


def _short(rng: random.Random) -> Iterator[str]:
    yield rng.choice(SHORT)


_KINDS: tuple[tuple[Callable[[random.Random], list[str] | Iterator[str]], float], ...] = (
    (_number, 0.12),
    (_digits, 0.10),
    (_date, 0.20),
    (_amount, 0.16),
    (_spelled, 0.08),
    (_switch, 0.12),
    (_move, 0.06),
    (_set, 0.08),
    (_call, 0.05),
    (_short, 0.03),
)
