"""The small language of the synthetic corpus: spelled words, numbers, dates, amounts and short commands.

About 110 words and no two that sound alike, so that a lexicon can tell them apart.  Spelled words are few, since
letters are the hardest.  Some pairs of words are avoided ("in the", "on
the", "of the") because espeak-ng speaks them as one word, which would leave the lexicon without the other.
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


def sentence(chance: random.Random) -> tuple[str, ...]:
    """Make up one sentence."""
    kinds = [kind for kind, _ in _KINDS]
    weights = [weight for _, weight in _KINDS]
    return tuple(" ".join(chance.choices(kinds, weights)[0](chance)).split())


def vocabulary() -> frozenset[str]:
    """All words that a sentence may have."""
    lists = [DIGITS, TEENS, TENS, MONTHS, DAYS, LETTERS, ROOMS, SWITCHED, MOVED, PEOPLE, SHORT, [_REST]]
    return frozenset(word for words in lists for entry in words for word in entry.split())


_REST = (
    "HUNDRED AND POINT THE ON OFF UP DOWN NEXT DOLLARS CENTS PERCENT DEGREES MINUTES HOURS"
    " SPELL TURN SWITCH SET TIMER OPEN CLOSE CALL PLAY NUMBER TEMPERATURE VOLUME PLEASE NOW"
)


def _below_hundred(chance: random.Random) -> list[str]:
    kind = chance.random()
    if kind < 0.3:
        return [chance.choice(DIGITS[1:])]
    if kind < 0.55:
        return [chance.choice(TEENS)]
    return [chance.choice(TENS), *([chance.choice(DIGITS[1:])] if chance.random() < 0.7 else [])]


def _number(chance: random.Random) -> list[str]:
    words = _below_hundred(chance)
    return words if chance.random() < 0.5 else [chance.choice(DIGITS[1:]), "HUNDRED", "AND", *words]


def _digits(chance: random.Random) -> list[str]:
    return ["NUMBER", *(chance.choice(DIGITS) for _ in range(chance.randint(3, 6)))]


def _date(chance: random.Random) -> list[str]:
    month, kind = chance.choice(MONTHS), chance.random()
    if kind < 0.4:
        return [chance.choice(DAYS), month, *_day(chance)]
    if kind < 0.65:
        return [month, *_day(chance)]
    if kind < 0.85:
        return [month, "NINETEEN", chance.choice(TENS), chance.choice(DIGITS[1:])]
    return ["NEXT", chance.choice(DAYS)]


def _day(chance: random.Random) -> list[str]:
    day = chance.randint(1, 31)
    if day < 20:
        return [(DIGITS + TEENS)[day]]
    return [TENS[day // 10 - 2], *([DIGITS[day % 10]] if day % 10 else [])]


def _amount(chance: random.Random) -> list[str]:
    kind = chance.random()
    if kind < 0.3:
        return [*_number(chance), "DOLLARS", "AND", *_below_hundred(chance), "CENTS"]
    if kind < 0.7:
        return [*_number(chance), "DOLLARS"]
    return [*_below_hundred(chance), "POINT", chance.choice(DIGITS), "PERCENT"]


def _spelled(chance: random.Random) -> list[str]:
    word = chance.choice(SPELLED)
    return ["SPELL", word, *word] if chance.random() < 0.6 else [*word]


def _switch(chance: random.Random) -> list[str]:
    verb, thing = chance.choice(("TURN", "SWITCH")), chance.choice(SWITCHED)
    where = [chance.choice(ROOMS)] if chance.random() < 0.4 else []
    return [verb, "THE", *where, thing, chance.choice(("ON", "OFF"))]


def _move(chance: random.Random) -> list[str]:
    return [chance.choice(("OPEN", "CLOSE")), "THE", chance.choice(ROOMS), chance.choice(MOVED)]


def _set(chance: random.Random) -> list[str]:
    kind = chance.random()
    if kind < 0.4:
        return ["SET", "THE", "TIMER", *_below_hundred(chance), chance.choice(("MINUTES", "HOURS"))]
    if kind < 0.7:
        return ["SET", "THE", "TEMPERATURE", *_below_hundred(chance), "DEGREES"]
    return ["TURN", chance.choice(("UP", "DOWN")), "THE", chance.choice(("VOLUME", "HEATING", "MUSIC"))]


def _call(chance: random.Random) -> list[str]:
    kind = chance.random()
    if kind < 0.6:
        return ["CALL", chance.choice(PEOPLE), *([chance.choice(("NOW", "PLEASE"))] if chance.random() < 0.5 else [])]
    return ["PLAY", "THE", chance.choice(("MUSIC", "RADIO"))]


def _short(chance: random.Random) -> Iterator[str]:
    yield chance.choice(SHORT)


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
