"""Lengths of time as people write them."""

from __future__ import annotations

import pytest

from turnkeep.cli.ages import age, is_age
from turnkeep.errors import InvalidInputError


@pytest.mark.parametrize("text", ["٣h", "3٫5h", "３d", "3 h", "h", "-3h", "3hh"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    assert not is_age(text)
    with pytest.raises(InvalidInputError, match="--older-than"):
        age("--older-than", text)
