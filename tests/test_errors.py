"""The tree of errors, and suggestions for names that are unknown."""

from __future__ import annotations

import pytest

from roundelay import errors
from roundelay.errors import CommunicationError, LearnerLost, MissingExtra, RoundelayError, suggest

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_one_of_ours_and_in_the_tree(kind: type[Exception]) -> None:
    assert issubclass(kind, RoundelayError)
    assert errors.__doc__ is not None
    assert kind.__name__ in errors.__doc__


def test_a_lost_learner_is_an_error_of_communication() -> None:
    assert issubclass(LearnerLost, CommunicationError)


def test_a_missing_package_says_how_to_get_it() -> None:
    said = str(MissingExtra("soxr", "speech"))
    assert said.startswith("soxr is not installed: install Roundelay with its extra speech")
    assert said.endswith("pip install '.[speech]'")


def test_the_nearest_name_is_suggested_or_all_are_listed() -> None:
    assert suggest("bumf", ["asgd", "bmuf"]) == "'bumf'; did you mean 'bmuf'?"
    assert suggest("xyz", ["bmuf", "asgd"]) == "'xyz'; use one of asgd, bmuf"
