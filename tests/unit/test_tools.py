"""Tools: what a signature becomes, which arguments fit, how a function is run, and what it may return."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from turnkeep.errors import ConfigurationError, InvalidInputError, UnstorableError, UsageError
from turnkeep.jsontext import RawJSON
from turnkeep.runner.effects import Policy
from turnkeep.runner.tools import InvalidArgumentsError, Tool, ToolContext, result_content, tool

CONTEXT = ToolContext(
    conversation_id=UUID(int=7),
    external_id="ticket-42",
    branch=0,
    turn_index=3,
    sub_step=2,
    call_id="call_1",
    tool="refund",
    idempotency_key="key",
    attempt=1,
    agent_id="support",
    variables={"tier": "gold"},
)


class Line(BaseModel):
    title: str
    count: int = 1


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tool
async def search_web(
    query: Annotated[str, Field(description="what to look for")],
    limit: int = 5,
    when: date | None = None,
    order: Literal["new", "old"] = "new",
    colour: Colour = Colour.RED,
    lines: list[Line] = [],  # noqa: B006
) -> Any:
    """Search the web.

    Slowly.
    """
    return query, limit, when, order, colour, lines


async def run(made: Tool, text: str) -> Any:
    return await made.run(CONTEXT, made.validated(text))


# -- the definition


def test_a_definition_comes_from_the_signature_and_the_docstring() -> None:
    function = search_web.definition()["function"]
    assert search_web.definition()["type"] == "function"
    assert function["name"] == "search_web"
    assert function["description"] == "Search the web.\n\nSlowly."
    schema = function["parameters"]
    assert schema["required"] == ["query"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["query"] == {"type": "string", "description": "what to look for"}
    assert schema["properties"]["limit"] == {"type": "integer", "default": 5}
    assert schema["properties"]["order"]["enum"] == ["new", "old"]
    assert schema["$defs"]["Line"]["properties"]["title"] == {"type": "string"}  # a property, no title
    assert "title" not in schema
    assert "title" not in schema["$defs"]["Line"]
    json.dumps(schema)


async def test_a_tool_is_called_like_its_function() -> None:
    assert (await search_web("x"))[:2] == ("x", 5)


def test_name_and_description_can_be_given() -> None:
    made = tool(lambda: None, name="no-thing", description="Nothing.")
    assert made.definition()["function"] == {
        "name": "no-thing",
        "description": "Nothing.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, Policy.REPORT),
        ({"idempotent": True}, Policy.RERUN),
        ({"idempotent": True, "on_crash": "rerun"}, Policy.RERUN),
        ({"transactional": True}, Policy.TRANSACTIONAL),
        ({"on_crash": "rerun"}, Policy.RERUN),
        ({"on_crash": "report"}, Policy.REPORT),
        ({"on_crash": "ask"}, Policy.ASK),
    ],
)
def test_options_make_the_policy(options: dict[str, Any], policy: Policy) -> None:
    async def act() -> None: ...

    assert tool(**options)(act).policy is policy


@pytest.mark.parametrize(
    "options",
    [
        {"idempotent": True, "transactional": True},
        {"idempotent": True, "on_crash": "ask"},
        {"transactional": True, "on_crash": "rerun"},
        {"on_crash": "transactional"},
        {"on_crash": "hope"},
        {"name": "two words"},
        {"name": "newline\n"},
        {"name": ""},
        {"name": "x" * 65},
    ],
)
def test_options_that_can_not_be_meant_are_refused(options: dict[str, Any]) -> None:
    async def act() -> None: ...

    with pytest.raises(InvalidInputError):
        tool(**options)(act)


def _positional_only(query: str, /) -> None: ...
def _unannotated(query) -> None: ...  # type: ignore[no-untyped-def]
def _variable(*query: str) -> None: ...
def _keywords(**query) -> None: ...  # type: ignore[no-untyped-def]
def _late_context(first: int, query: ToolContext) -> None: ...
def _no_schema(first: int, query: Callable[[], int]) -> None: ...
def _no_type(first: int, query: threading.Thread) -> None: ...


@pytest.mark.parametrize(
    "function", [_positional_only, _unannotated, _variable, _keywords, _late_context, _no_schema, _no_type]
)
def test_a_signature_that_can_not_be_filled_is_refused_by_name(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"{function.__name__}.*'query'"):
        tool(function)


def test_what_can_not_be_a_tool_is_refused() -> None:
    def generator() -> Any:
        yield 1

    def synchronous() -> None: ...

    def unresolvable(query: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821

    for made in (
        lambda: tool("name"),  # type: ignore[call-overload]
        lambda: tool(generator),
        lambda: tool(transactional=True)(synchronous),
        lambda: tool(lambda: None),
    ):
        with pytest.raises(InvalidInputError):
            made()
    with pytest.raises(InvalidInputError, match="Missing"):
        tool(unresolvable)


def test_a_return_type_need_not_be_resolvable() -> None:
    def act(query: str) -> Missing: ...  # type: ignore[name-defined] # noqa: F821

    assert tool(act).validated('{"query": "x"}') == {"query": "x"}


async def test_annotations_may_name_what_is_local() -> None:
    class Order(BaseModel):
        number: int

    @tool(idempotent=True)
    async def refund(context: ToolContext, order: Order) -> int:
        return order.number + context.turn_index

    assert await run(refund, '{"order": {"number": "7"}}') == 10


def test_a_default_without_json_text_is_no_obstacle() -> None:
    marker = object()

    def act(query: Any = marker) -> Any:
        return query

    made = tool(act)
    assert made.validated("{}") == {}
    assert made.parameters["properties"] == {"query": {}}


def test_without_pydantic_a_tool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'turnkeep\[openai\]'"):
        tool(_variable)


def test_importing_turnkeep_and_tools_loads_no_pydantic() -> None:
    code = "import sys, turnkeep, turnkeep.runner.tools, turnkeep.runner.models; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "openai", "httpx2"} & set(loaded)


# -- arguments


async def test_arguments_become_python_values() -> None:
    text = '{"query": "x", "limit": "9", "when": "2026-01-02", "colour": "blue", "lines": [{"title": "a"}]}'
    assert await run(search_web, text) == ("x", 9, date(2026, 1, 2), "new", Colour.BLUE, [Line(title="a")])


async def test_defaults_stay_the_functions_own() -> None:
    assert search_web.validated('{"query": "x"}') == {"query": "x"}


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_no_text_counts_as_no_arguments(text: str) -> None:
    def act(limit: int = 3) -> int:
        return limit

    assert tool(act).validated(text) == {}


def test_a_default_may_be_a_field() -> None:
    def act(limit: int = Field(3, le=10), names: list[str] = Field(default_factory=list)) -> int:  # noqa: B008
        return limit

    made = tool(act)
    assert made.validated("{}") == {"limit": 3, "names": []}
    assert made.validated('{"limit": 4}') == {"limit": 4, "names": []}
    with pytest.raises(InvalidArgumentsError, match=r"limit: .*less than or equal to 10"):
        made.validated('{"limit": 11}')


def test_any_name_can_be_a_parameters() -> None:
    def act(json: str, model_config: int, _private: int, schema: int, self: int) -> None: ...

    text = '{"json": "x", "model_config": 1, "_private": 2, "schema": 3, "self": 4}'
    assert tool(act).validated(text) == json.loads(text)


def test_a_strict_model_takes_what_json_has_for_it() -> None:
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        id: UUID
        when: datetime

    def act(item: Strict) -> None: ...

    item = tool(act).validated(json.dumps({"item": {"id": str(UUID(int=1)), "when": "2026-01-01T00:00:00Z"}}))["item"]
    assert item == Strict(id=UUID(int=1), when=datetime(2026, 1, 1, tzinfo=UTC))


def test_keyword_arguments_take_the_rest_and_are_validated() -> None:
    def act(context: ToolContext, query: str, **rest: int) -> None: ...

    made = tool(act)
    assert made.parameters["additionalProperties"] == {"type": "integer"}
    assert made.validated('{"query": "x", "a": "1", "argument_1": 2}') == {"query": "x", "a": 1, "argument_1": 2}
    with pytest.raises(InvalidArgumentsError, match="a: "):
        made.validated('{"query": "x", "a": "one"}')
    with pytest.raises(InvalidArgumentsError, match="context"):
        made.validated('{"query": "x", "context": 1}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "arguments: is not JSON"),
        ('{"query": "x"} {}', "something follows"),
        ("[]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("{}", "query: Field required"),
        ('{"query": "x", "limit": "many"}', "limit: Input should be a valid integer"),
        ('{"query": "x", "lines": [{"title": "a"}, {}]}', r"lines\.1\.title: Field required"),
        ('{"query": "x", "pages": 3}', "pages: Extra inputs are not permitted"),
        ('{"query": "x", "order": "odd"}', "order: Input should be 'new' or 'old'"),
        ('{"query": "x", "limit": NaN}', "NaN and Infinity are not JSON"),
        ('{"query": "x", "limit": -Infinity}', "NaN and Infinity are not JSON"),
        ('{"query": "x", "limit": 1e400}', "beyond the range"),
        ('{"query": "x", "limit": ' + "9" * 5000 + "}", "digits"),
        ('{"query": ' + "[" * 100_000 + "]" * 100_000 + "}", "deeper"),
        ('{"query": ' + "[" * 300 + "]" * 300 + "}", "recursion limit"),
        ('{"query": "\\ud800"}', "arguments|query|JSON"),
        ('{"query": "\ud800"}', "."),
        ('{"query": "x", "\\ud800": 1}', "."),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentsError, match=message) as caught:
        search_web.validated(text)
    assert len(str(caught.value)) <= 1000
    str(caught.value).encode()


def test_many_mistakes_make_a_short_message() -> None:
    with pytest.raises(InvalidArgumentsError, match="and 96 more") as caught:
        search_web.validated(json.dumps({f"{'k' * 50}{n}": n for n in range(100)}))
    assert len(str(caught.value)) <= 1000


def test_a_validator_that_breaks_refuses_the_argument() -> None:
    def broken(value: int) -> int:
        raise LookupError("oops \ud800")

    def act(limit: Annotated[int, AfterValidator(broken)]) -> None: ...

    with pytest.raises(InvalidArgumentsError, match="LookupError: oops") as caught:
        tool(act).validated('{"limit": 1}')
    str(caught.value).encode()


# -- running


async def test_a_plain_function_runs_in_a_thread() -> None:
    @tool
    def where(context: ToolContext) -> tuple[str, int]:
        return context.external_id, threading.get_ident()

    assert where.parameters["properties"] == {}
    external_id, thread = await run(where, "{}")
    assert external_id == "ticket-42"
    assert thread != threading.get_ident()


async def test_an_async_function_runs_in_the_loop() -> None:
    @tool
    async def where() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    assert await run(where, "{}") == threading.get_ident()


async def test_what_a_plain_function_wants_awaited_is() -> None:
    async def later() -> str:
        return "at last"

    assert await run(tool(lambda: later(), name="wrapped"), "{}") == "at last"


async def test_what_a_tool_raises_comes_out() -> None:
    @tool
    def fail() -> None:
        raise LookupError("nothing there")

    @tool
    def stop() -> None:
        next(iter(()))

    with pytest.raises(LookupError, match="nothing there"):
        await run(fail, "{}")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(run(stop, "{}"), 60)


def test_only_a_transactional_tool_has_a_connection() -> None:
    with pytest.raises(UsageError, match=r"'refund'.*transactional=True"):
        _ = CONTEXT.connection
    connection: Any = object()
    transaction: Any = SimpleNamespace(connection=connection)
    assert dataclasses.replace(CONTEXT, _transaction=transaction).connection is connection
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONTEXT.attempt = 2  # type: ignore[misc]


# -- results


@dataclasses.dataclass
class Point:
    x: int
    at: datetime


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, None),
        (True, True),
        (1.5, 1.5),
        ({"a": [1, None]}, {"a": [1, None]}),
        ((1, "2"), [1, "2"]),
        (Line(title="a"), {"title": "a", "count": 1}),
        ([Line(title="a")], [{"title": "a", "count": 1}]),
        (Point(1, datetime(2026, 1, 1, tzinfo=UTC)), {"x": 1, "at": "2026-01-01T00:00:00Z"}),
        (UUID(int=1), str(UUID(int=1))),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        ({date(2026, 1, 1): 1, 2: 3}, {"2026-01-01": 1, "2": 3}),
        (b"utf-8", "utf-8"),
        ({3}, [3]),
        pytest.param((n for n in (1, 2)), [1, 2], id="a generator"),
        (RawJSON('{"a": 1.10}'), {"a": 1.1}),
        ("\ud800", "\ud800"),
    ],
    ids=repr,
)
def test_a_result_becomes_a_json_value(value: Any, content: Any) -> None:
    made = result_content(value)
    assert made == content
    assert type(made) is type(content)


class Hostile:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise KeyError("no class")

    def __repr__(self) -> str:
        raise KeyError("no repr")


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append([cycle])
    return cycle


def _deep(levels: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(levels):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"\xff", "utf-8"),
        (lambda: float("nan"), "is nan"),
        (lambda: {"a": [float("inf")]}, r'result\["a"\]\[0\]: is inf'),
        (_cycle, "contains itself"),
        (lambda: _deep(600), "deeper"),
        (lambda: _deep(100_000), "deeper"),
        (object, "object"),
        (lambda: {"a": lambda: 1}, "function"),
        (Hostile, "."),
        (lambda: 10**5000, "digits"),
        (lambda: RawJSON("1e400"), "beyond the range"),
        (lambda: Exception("x"), "Exception"),
    ],
)
def test_what_can_not_be_stored_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(UnstorableError, match=reason):
        result_content(make())


def test_a_tool_is_a_frozen_record() -> None:
    assert isinstance(search_web.parameters, Mapping)
    with pytest.raises(dataclasses.FrozenInstanceError):
        search_web.name = "other"  # type: ignore[misc]
    assert len({search_web, search_web}) == 1
