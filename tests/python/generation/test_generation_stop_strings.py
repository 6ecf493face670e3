"""Stop strings: the same cut whatever pieces the text comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packhorse.text.generation.stop_strings import StopStrings, check_stops

LETTERS = st.text("ab", max_size=12)


def expected(text: str, stops: list[str]) -> str:
    """Character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@given(
    pieces=st.lists(LETTERS, max_size=6),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_the_cut_does_not_depend_on_pieces(pieces: list[str], stops: list[str]) -> None:
    cutter = StopStrings(stops)
    given_ = [cutter.push(piece) for piece in pieces]
    found = cutter.found
    given_.append("" if found else cutter.finish())
    text = "".join(pieces)
    assert "".join(given_) == expected(text, stops)
    assert (found is not None) == any(stop in text for stop in stops)
    included = StopStrings(stops, include=True)
    whole = "".join([*map(included.push, pieces), "" if included.found else included.finish()])
    assert whole == expected(text, stops) + (found or "")


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    cutter = StopStrings(["\n\n", "END"])
    assert [cutter.push(piece) for piece in ("a\n", "b E", "N", "x", "E")] == [
        "a",
        "\nb ",
        "",
        "ENx",
        "",
    ]
    assert cutter.finish() == "E"
    assert cutter.found is None


def test_nothing_comes_after_a_stop_string() -> None:
    cutter = StopStrings(["b"])
    assert cutter.push("abc") == "a"
    assert cutter.found == "b"
    assert cutter.push("more") == cutter.finish() == ""


def test_what_is_no_stop_string() -> None:
    assert check_stops(None) == []
    assert check_stops("ab") == ["ab"]
    with pytest.raises(ValueError, match=r"stop\[1\] is '', expected a text that is not empty"):
        check_stops(["a", ""])
    with pytest.raises(ValueError, match=r"stop\[0\] is 3"):
        check_stops([3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="stop is 3, expected a text or a list of texts"):
        check_stops(3)  # type: ignore[arg-type]
