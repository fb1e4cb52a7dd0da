"""Tools: functions that a model may call, their arguments, and what becomes of them when a process dies."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import GenericAlias, SimpleNamespace, new_class
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast, get_args, get_type_hints, overload
from uuid import UUID

from turnkeep import jsontext
from turnkeep.errors import ConfigurationError, InvalidInputError, UnreadableError, UnstorableError, UsageError
from turnkeep.runner.effects import Json, Policy

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from pydantic import BaseModel

    from turnkeep.store import AsyncTransaction

Function = Callable[..., Any]
OnCrash = Literal["rerun", "report", "ask"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_VALUES: Final = frozenset({"default", "const", "enum", "examples"})
_SCALARS: Final = frozenset({str, bool, int, float, type(None)})
_MAX_ERRORS: Final = 5
_ROOM_IN_MESSAGE: Final = 65_536  # bytes, for all that a message holds beside its content
_MAX_MESSAGE_CHARACTERS: Final = 1000


class InvalidArgumentsError(ValueError):
    """A model's arguments don't fit the tool. The message is for the model: what is wrong, and where."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know about the call it answers: its first parameter, where annotated as such.

    `idempotency_key` stays the same when a call is run again; `attempt` counts from 1. `variables` are those of the
    conversation's state. `call_id` is the model's, which may be missing or given twice.
    """

    conversation_id: UUID
    external_id: str
    branch: int
    turn_index: int
    sub_step: int
    call_id: str | None
    tool: str
    idempotency_key: str
    attempt: int
    agent_id: str | None
    variables: Mapping[str, Any]
    _transaction: AsyncTransaction | None = field(default=None, repr=False, compare=False)

    @property
    def connection(self) -> AsyncConnection[Any]:
        """The transaction of a transactional tool. What it writes commits with the call's result, or not at all.

        Raises `UsageError` for any other tool, and when this one has come to its end.
        """
        if self._transaction is None:
            raise UsageError(
                f"tool {self.tool!r} has no transaction: declare it with @turnkeep.tool(transactional=True)"
            )
        return self._transaction.connection


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model may call. Made by `tool`; called like the function itself.

    `parameters` is the JSON Schema of its arguments. `policy` says what becomes of a call that was started and has no
    result, its process being dead.
    """

    name: str
    description: str
    parameters: Json
    policy: Policy
    function: Function
    _signature: _Signature = field(repr=False)
    _model: type[BaseModel] = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def definition(self) -> Json:
        """The tool as an OpenAI-compatible server is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def validated(self, arguments: str) -> dict[str, Any]:
        """The values for `run`, from a model's JSON text; no text at all counts as ``{}``.

        Raises `InvalidArgumentsError`, and nothing else.
        """
        try:
            return self._validated(arguments if arguments.strip() else "{}")
        except InvalidArgumentsError:
            raise
        except UnreadableError as error:
            message = str(error)
        except Exception as error:  # noqa: BLE001 - validators are anybody's code
            message = _describe(error)
        raise InvalidArgumentsError(_printable(message)) from None

    def _validated(self, text: str) -> dict[str, Any]:
        value = jsontext.decode(text, "arguments")
        if not isinstance(value, dict):
            raise InvalidArgumentsError("arguments: must be a JSON object")
        if self._signature.context in value:
            raise InvalidArgumentsError(f"{self._signature.context}: there is no such argument")
        model = self._model.model_validate_json(text)
        fields, given = model.__dict__, model.model_fields_set
        values = {
            parameter.name: fields[key]
            for key, parameter in self._signature.arguments.items()
            if key in given or not parameter.has_plain_default
        }
        return values | (model.__pydantic_extra__ or {})

    async def run(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """Call the function with values that `validated` gave; one that is not async runs in a thread."""
        own = {self._signature.context: context} if self._signature.context else {}
        call = partial(self.function, **own, **arguments)
        if inspect.iscoroutinefunction(self.function):
            return await call()
        result = await asyncio.get_running_loop().run_in_executor(_threads, copy_context().run, _call, call)
        return await result if inspect.isawaitable(result) else result


# Of their own: in the event loop's few, tools that hang would keep every other call from running.
_threads = ThreadPoolExecutor(max_workers=1000, thread_name_prefix="turnkeep-tool")


@overload
def tool(
    function: Function,
    /,
    *,
    idempotent: bool = False,
    transactional: bool = False,
    on_crash: OnCrash | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Tool: ...
@overload
def tool(
    *,
    idempotent: bool = False,
    transactional: bool = False,
    on_crash: OnCrash | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    idempotent: bool = False,
    transactional: bool = False,
    on_crash: OnCrash | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Tool | Callable[[Function], Tool]:
    """Make a function a tool that a model may call, with or without options.

    Its arguments and their JSON Schema come from the signature; a first parameter annotated `ToolContext` gets the
    context. The description is the docstring. When a process dies between a call's start and its result, an
    `idempotent` tool runs again under the same key, a `transactional` one too, its effects and its result being one
    commit. Of any other the model is told that the outcome is unknown, unless `on_crash` says to run it again
    ("rerun") or to wait for a person ("ask").

    Raises `InvalidInputError` for a function that can't be a tool and for options that contradict each other.
    """
    policy = _policy(idempotent, transactional, on_crash)

    def decorate(function: Function) -> Tool:
        return _make(function, policy, name, description, dict(sys._getframe(1).f_locals))

    return decorate if function is None else _make(function, policy, name, description, dict(sys._getframe(1).f_locals))


def result_content(value: Any) -> Any:
    """What a tool returned, as a JSON value, just as it will be read back from the database.

    Pydantic models, dataclasses, dates, UUIDs and the like become what pydantic writes for them. Raises
    `UnstorableError`, and nothing else, for what has no JSON text that can be stored in a message of its own.
    """
    text, value = _json_text(value)
    if type(value) in _SCALARS:
        return value
    try:
        return jsontext.decode(text, "result")
    except UnreadableError as error:
        raise UnstorableError(error.path, error.reason) from None


def _encoded(value: Any) -> str:
    return jsontext.encode(value, "result", max_bytes=jsontext.MAX_MESSAGE_BYTES - _ROOM_IN_MESSAGE)


def _json_text(value: Any) -> tuple[str, Any]:
    """The text of a value, and the value it is the text of."""
    try:
        return _encoded(value), value
    except UnstorableError as error:
        plainly = error
    except Exception as error:  # noqa: BLE001 - any object may come out of a tool
        plainly = UnstorableError("result", _describe(error))
    try:
        from pydantic_core import to_jsonable_python

        value = to_jsonable_python(value)
        return _encoded(value), value
    except UnstorableError:
        raise
    except Exception as error:  # noqa: BLE001 - serializers are anybody's code
        if type(error) is not ValueError:  # pydantic's word for a cycle, which jsontext has located
            plainly = UnstorableError("result", f"can't be turned into JSON: {_describe(error)}")
    raise plainly from None


# -- from a function to a tool


@dataclass(frozen=True)
class _Parameter:
    name: str
    annotation: Any
    default: Any

    @property
    def has_plain_default(self) -> bool:
        """Whether the function knows its own default, which is then not ours to pass."""
        return self.default is not inspect.Parameter.empty and type(self.default).__name__ != "FieldInfo"


@dataclass(frozen=True)
class _Signature:
    """`arguments` by the names of their fields in the model; `extra` annotates the values of ``**kwargs``."""

    arguments: Mapping[str, _Parameter]
    context: str | None
    extra: Any = inspect.Parameter.empty


def _policy(idempotent: bool, transactional: bool, on_crash: str | None) -> Policy:
    if on_crash not in (None, Policy.RERUN, Policy.REPORT, Policy.ASK):
        raise InvalidInputError(f'on_crash: expected "rerun", "report" or "ask", got {on_crash!r}')
    if transactional and (idempotent or on_crash):
        raise InvalidInputError("tool: transactional=True says it all: leave out idempotent and on_crash")
    if idempotent and on_crash not in (None, Policy.RERUN):
        raise InvalidInputError(f'tool: idempotent=True is run again, which contradicts on_crash="{on_crash}"')
    if transactional:
        return Policy.TRANSACTIONAL
    return Policy.RERUN if idempotent else Policy(on_crash or Policy.REPORT)


def _make(function: Function, policy: Policy, name: str | None, description: str | None, names: Json) -> Tool:
    if not inspect.isroutine(function):
        raise InvalidInputError(f"tool: expected a function, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInputError(f"tool {function.__name__!r}: a tool returns its result, it can't yield")
    name = function.__name__ if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInputError(f"tool {name!r}: a name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -")
    if policy is Policy.TRANSACTIONAL and not inspect.iscoroutinefunction(function):
        raise InvalidInputError(f"tool {name!r}: a transactional tool must be an async function")
    try:
        import pydantic  # noqa: F401
    except ImportError:
        raise ConfigurationError("tools need pydantic: pip install 'turnkeep[openai]'") from None
    signature = _read_signature(function, name, names)
    model, schema = _build_model(signature, name)
    description = (inspect.getdoc(function) or "") if description is None else description
    return Tool(name, description, schema, policy, function, signature, model)


def _read_signature(function: Function, name: str, names: Json) -> _Signature:
    hints = _hints(function, name, names)
    arguments: dict[str, _Parameter] = {}
    context, extra = None, inspect.Parameter.empty
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidInputError(f"{where}: arguments come by name, it can't be positional only")
        if parameter.name not in hints:
            raise InvalidInputError(f"{where}: needs an annotation")
        annotation = hints[parameter.name]
        if annotation is ToolContext or ToolContext in get_args(annotation):
            if number or parameter.kind is parameter.VAR_KEYWORD:
                raise InvalidInputError(f"{where}: the ToolContext must be the first parameter")
            context = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            extra = annotation
        else:
            arguments[f"argument_{number}"] = _Parameter(parameter.name, annotation, parameter.default)
    return _Signature(arguments, context, extra)


def _hints(function: Function, name: str, names: Json) -> Json:
    origin = inspect.unwrap(function)
    annotations = dict(getattr(origin, "__annotations__", {}))
    annotations.pop("return", None)  # which nobody needs, and which may be there for a type checker only
    try:
        # Of a function defined inside another one, the annotations may name what is local there.
        return get_type_hints(
            SimpleNamespace(__annotations__=annotations), getattr(origin, "__globals__", {}), names, include_extras=True
        )
    except Exception as error:
        raise InvalidInputError(f"tool {name!r}: an annotation can't be resolved: {_describe(error)}") from error


def _build_model(signature: _Signature, name: str) -> tuple[type[BaseModel], Json]:
    """A pydantic model of the arguments, and its JSON Schema."""
    from pydantic import BaseModel, ConfigDict, create_model
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012

    extra = signature.extra
    has_extra = extra is not inspect.Parameter.empty
    namespace: Json = {"model_config": ConfigDict(extra="allow" if has_extra else "forbid"), "__module__": __name__}
    if has_extra:
        namespace["__annotations__"] = {"__pydantic_extra__": GenericAlias(dict, (str, extra))}
    # Fields have names of their own, since `json`, `_x` or `model_config` can't be a field's name.
    fields = {
        key: (_aliased(parameter), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for key, parameter in signature.arguments.items()
    }
    try:
        base: type[BaseModel] = new_class("Arguments", (BaseModel,), exec_body=lambda body: body.update(namespace))
        model: type[BaseModel] = create_model("Arguments", __base__=base, **cast(Any, fields))
        return model, cast(Json, _without_titles(model.model_json_schema(schema_generator=Quiet)))
    except Exception as error:
        where = next((f", parameter {p.name!r}" for p in signature.arguments.values() if not _has_schema(p)), "")
        raise InvalidInputError(f"tool {name!r}{where}: {_describe(error)}") from error


def _aliased(parameter: _Parameter) -> Any:
    from pydantic import Field

    return Annotated[parameter.annotation, Field(alias=parameter.name)]


def _has_schema(parameter: _Parameter) -> bool:
    from pydantic import TypeAdapter

    try:
        TypeAdapter(parameter.annotation).json_schema()
    except Exception:  # noqa: BLE001 - only asked once something has failed
        return False
    return True


def _without_titles(schema: Any) -> Any:
    """A JSON Schema without the titles that pydantic makes up from the names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain: Json = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS:
            plain[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key != "title":
            plain[key] = value if key in _VALUES else _without_titles(value)
    return plain


# -- small things


def _call(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except (StopIteration, GeneratorExit) as error:
        # A future can't carry them: whoever awaits the thread would wait for ever, or be closed.
        raise RuntimeError(f"the tool raised {type(error).__name__}") from error


def _describe(error: Exception) -> str:
    """An exception in one line, whatever it is."""
    try:
        from pydantic import ValidationError

        if isinstance(error, ValidationError):
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            lines = [": ".join(filter(None, (".".join(map(str, p["loc"])), p["msg"]))) for p in problems[:_MAX_ERRORS]]
            more = len(problems) - len(lines)
            return _printable("; ".join(lines) + (f"; and {more} more" if more else ""))
        return _printable(f"{type(error).__name__}: {error}".splitlines()[0])
    except Exception:  # noqa: BLE001 - its own text may fail
        return type(error).__name__


def _printable(message: str) -> str:
    text = message.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_MESSAGE_CHARACTERS else text[: _MAX_MESSAGE_CHARACTERS - 1] + "…"
