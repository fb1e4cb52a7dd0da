"""Models on OpenAI-compatible servers: a request goes out, and its reply is put together from the pieces of a stream.

The stream is read as it comes over the wire: a reply is kept word for word, whatever keys a server adds to it, and a
stream that has broken off is not taken for a whole one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Self, cast

from turnkeep import jsontext
from turnkeep.errors import ConfigurationError, InvalidInputError, UnreadableError
from turnkeep.runner.deltas import ModelUnavailableError, ReplyBuilder
from turnkeep.runner.effects import AskModel, Json, ModelRefused, ModelReply
from turnkeep.runner.served import PASSING, TOO_LONG, cause, retry_after, shorten, told

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncAPIResponse

    from turnkeep.runner.agent import Agent

OnText = Callable[[str], None]

_INSTALL: Final = "models need the openai package: pip install 'turnkeep[openai]'"
_NO_KEY: Final = "none"  # the client wants one, servers of one's own mostly don't
_CONNECT_SECONDS: Final = 10.0
_DRAIN_SECONDS: Final = 0.1
_OURS: Final = frozenset({"messages", "tools", "stream", "n"})


class _ConnectionLostError(ModelUnavailableError):
    """The connection broke or fell silent. What came before it may be a whole reply."""


class ModelClient:
    """Asks an agent's model. Close it at the end.

    Raises `ConfigurationError` where the openai package is missing or the address is none, and `InvalidInputError` for
    options that are not an agent's to set.
    """

    def __init__(self, agent: Agent) -> None:
        if taken := sorted(_OURS & set(agent.options)):
            raise InvalidInputError(f"options: {taken[0]!r} is set by the turn loop")
        try:
            import anyio
            import httpx2
            import openai
        except ImportError:
            raise ConfigurationError(_INSTALL) from None
        self._broken = (openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, OSError, anyio.EndOfStream)
        self._hopeless = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects)
        self._status_error = openai.APIStatusError
        self._agent = agent
        try:
            self._client = openai.AsyncOpenAI(
                api_key=agent.api_key or os.environ.get("OPENAI_API_KEY") or _NO_KEY,
                base_url=agent.base_url,
                timeout=openai.Timeout(agent.timeout, connect=min(agent.timeout, _CONNECT_SECONDS)),
                max_retries=0,
            )
            address = self._client.base_url
        except (httpx2.InvalidURL, openai.OpenAIError) as error:
            raise ConfigurationError(f"agent {agent.name!r}: {error}") from None
        options = dict(agent.options)
        self._extras = {key: options.pop(key) for key in ("extra_headers", "extra_query") if key in options}
        extra_body = options.pop("extra_body", None) or {}
        self._options: Json = {"stream_options": {"include_usage": True}, **options, **extra_body}
        if self._options["stream_options"] is None:
            del self._options["stream_options"]
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigurationError(f"agent {agent.name!r}: base_url is no http address: {str(address)!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def reply(self, effect: AskModel, on_text: OnText | None = None) -> ModelReply | ModelRefused:
        """The model's whole reply, or why it will never give one. `on_text` gets each piece of its text as it comes.

        Raises `ModelUnavailableError` for everything that may be otherwise when asked again.
        """
        async with AsyncExitStack() as stack:
            response = await self._open(stack, effect)
            if isinstance(response, ModelRefused):
                return response
            building = ReplyBuilder()
            try:
                return await self._read(response, building, on_text)
            except ModelUnavailableError as error:
                error.begun = building.begun
                raise

    async def _open(self, stack: AsyncExitStack, effect: AskModel) -> AsyncAPIResponse[Any] | ModelRefused:
        body = {**self._options, "messages": list(effect.messages)}
        if effect.tools:
            body["tools"] = list(effect.tools)
        try:
            try:
                return await stack.enter_async_context(self._request(body))
            except UnicodeEncodeError:
                return await stack.enter_async_context(self._request(_encodable(body)))
        except self._status_error as error:
            return _refusal(error)
        except self._broken as error:
            if isinstance(error.__cause__, self._hopeless):
                return ModelRefused(f"the request can't be sent: {cause(error)}")
            raise ModelUnavailableError(f"{self._client.base_url} can't be reached: {cause(error)}") from error
        except (TypeError, ValueError, RecursionError) as error:
            return ModelRefused(f"the request can't be sent: {cause(error)}")

    def _request(self, body: Json) -> Any:
        # As `messages`, they would be walked through for types that they don't contain: 0.2 ms each.
        return self._client.chat.completions.with_streaming_response.create(
            model=self._agent.model, messages=[], stream=True, extra_body=body, **self._extras
        )

    async def _read(
        self, response: AsyncAPIResponse[Any], building: ReplyBuilder, on_text: OnText | None
    ) -> ModelReply | ModelRefused:
        done = False
        async with aclosing(self._events(response)) as events:
            try:
                async for event, data in events:
                    building.begun = True
                    if done := data.startswith("[DONE]"):
                        break
                    chunk = _parse(data)
                    if refused := _refusal_in_stream(event, chunk):
                        return refused
                    for text in building.add(chunk):
                        if on_text is not None:
                            on_text(text)
            except _ConnectionLostError:
                if building.finish_reason is None:
                    raise
            with suppress(ModelUnavailableError, TimeoutError):
                # Only a response that is read to its end leaves its connection for the next one.
                async with asyncio.timeout(_DRAIN_SECONDS):
                    async for _ in events:
                        pass
        return building.reply(done=done)

    async def _events(self, response: AsyncAPIResponse[Any]) -> AsyncGenerator[tuple[str, str]]:
        """Each server-sent event, its name and its data. A server that doesn't stream sends one."""
        try:
            parser = _EventParser()
            if "json" in response.headers.get("content-type", ""):
                body = await response.read()
                for event in [("", body.decode())] if body.lstrip()[:1] == b"{" else parser.feed(body + b"\n\n"):
                    yield event
                return
            async with aclosing(cast("AsyncGenerator[bytes]", response.iter_bytes())) as chunks:
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        yield event
            for event in parser.feed(b"\n\n"):
                yield event
        except self._broken as error:
            raise _ConnectionLostError(f"the connection to {self._client.base_url} broke: {cause(error)}") from error
        except UnicodeDecodeError as error:
            raise ModelUnavailableError(f"the reply is no UTF-8: {error}") from error


# -- the wire


class _EventParser:
    """Server-sent events from bytes, however they are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[tuple[str, str]]:
        lines = (self._rest + chunk).splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            field, _, value = line.rstrip(b"\r\n").decode().partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            elif field == "event":
                self._name = value.removeprefix(" ")
            elif not field and not value and line[:1] != b":":
                if self._data:
                    yield self._name, "\n".join(self._data)
                self._name, self._data = "", []


def _parse(data: str) -> Json:
    try:
        chunk = jsontext.decode(data, "chunk")
    except UnreadableError as error:
        raise ModelUnavailableError(f"the stream is broken: {error}") from None
    if not isinstance(chunk, dict):
        raise ModelUnavailableError(f"the stream is broken: a chunk is no object: {shorten(data)}")
    return chunk


def _encodable(body: Json) -> Json:
    """The body with each lone surrogate replaced, which is no UTF-8."""
    text = json.dumps(body, ensure_ascii=False)
    return cast(Json, json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")))


def _refusal(error: APIStatusError) -> ModelRefused:
    """A refusal for good. Raises `ModelUnavailableError` where it isn't."""
    reason, kinds = told(error.body)
    status = error.status_code
    message = f"HTTP {status}: {reason}" if reason else f"HTTP {status}"
    if (status >= 500 or status in PASSING) and not kinds & TOO_LONG:
        raise ModelUnavailableError(message, retry_after(error.response.headers), status) from None
    return ModelRefused(message, status)


def _refusal_in_stream(event: str, chunk: Json) -> ModelRefused | None:
    """What an error in a stream says. Once a request was taken, an error's status says little of it."""
    error = chunk.get("error") or (chunk if event == "error" or chunk.get("object") == "error" else None)
    if not error:
        return None
    reason, kinds = told(error)
    if kinds & TOO_LONG:
        return ModelRefused(reason)
    raise ModelUnavailableError(f"the model server reports an error: {reason}")
