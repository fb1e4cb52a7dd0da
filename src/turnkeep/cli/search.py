"""`turnkeep search`: turns by what was said in them, and conversations like another."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeep.cli.ages import age, is_age
from turnkeep.cli.completion import complete
from turnkeep.cli.database import opened
from turnkeep.cli.details import pairs
from turnkeep.cli.failures import Exit
from turnkeep.cli.options import EmbeddingsOption, ModelOption, Options, conversation_command
from turnkeep.cli.output import Output
from turnkeep.cli.reference import CONVERSATION, find, find_only
from turnkeep.cli.text import ago, count, cut, one_line
from turnkeep.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from turnkeep.search import Hit, SearchResult
    from turnkeep.store import AsyncStore

_MOST_COUNTED = 10_000
_MOST_NAMED = 5
# What a shell takes as it is. A reference to a place takes it apart at a ":" only where nothing has the longer id.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/:-]*")
_LONGEST_NAME = 60


@dataclass(frozen=True)
class _Asked:
    query: str | None
    similar: str | None
    mode: str | None
    limit: int
    conversation: str | None
    filters: dict[str, Any]


@conversation_command
def search(
    options: Options,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help='Words, "a phrase", or, -without.', show_default=False),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", metavar="MODE", help="text, semantic or hybrid; hybrid where there are embeddings."),
    ] = None,
    similar: Annotated[
        str | None,
        typer.Option(
            "--similar",
            metavar="ID",
            help="Instead of a query: conversations like this one.",
            autocompletion=complete,
        ),
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only this agent's.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="Only turns that ended since: 30min, 12h, 7d, 4w, a date."),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation",
            metavar="ID",
            help=f"Only of this conversation; with :branch, of that branch and what it inherits. {CONVERSATION}",
            autocompletion=complete,
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Only of conversations whose metadata have this, as JSON or else text.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only those with this tag; may be repeated.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="At most so many hits.")
    ] = 10,
    embeddings: EmbeddingsOption = None,
    model: ModelOption = None,
    index: Annotated[
        bool,
        typer.Option(
            "--index", help="Instead of a query: make the index over the model's vectors, drop those nobody needs."
        ),
    ] = False,
) -> Exit | None:
    """Find turns by what was said in them: by words, by meaning, or both."""
    if index:
        if query is not None or similar is not None:
            raise InvalidInputError("--index goes with neither a query nor --similar")
        return asyncio.run(_index(options, embeddings, model))
    if (query is None) == (similar is None):
        raise InvalidInputError("give either a query or --similar")
    if similar is not None and (conversation is not None or mode is not None):
        raise InvalidInputError("--similar goes with neither --conversation nor --mode")
    filters = {
        "agent": agent,
        "since": None if since is None else _moment(since),
        "metadata": pairs("--where", where) if where else None,
        "tags": tag or None,
    }
    asked = _Asked(query, similar, mode, limit, conversation, filters)
    result = asyncio.run(_search(options, asked, embeddings, model))
    _print(options, result, asked)
    return None


async def _search(options: Options, asked: _Asked, embeddings: str | None, model: str | None) -> SearchResult:
    from turnkeep.search import Search, provider_from_settings

    provider = None if asked.mode == "text" else provider_from_settings(embeddings, model)
    if asked.mode == "semantic" and provider is None:
        raise ConfigurationError(
            "a semantic search needs embeddings of the query: say --embeddings local or a server's URL, or set "
            "TURNKEEP_EMBEDDINGS"
        )
    async with AsyncExitStack() as stack:
        if provider is not None and hasattr(provider, "close"):
            stack.push_async_callback(provider.close)
        store = await stack.enter_async_context(opened(options))
        looking = Search(store, provider)
        if asked.similar is not None:
            return await looking.similar(await find_only(store, asked.similar), limit=asked.limit, **asked.filters)
        within = {} if asked.conversation is None else await _within(store, asked.conversation)
        assert asked.query is not None
        return await looking.search(asked.query, mode=asked.mode, limit=asked.limit, **within, **asked.filters)


async def _index(options: Options, embeddings: str | None, model: str | None) -> Exit:
    """Whatever the number of vectors: who asks for an index gets one."""
    from turnkeep.search import build_index, drop_unused_indexes, provider_from_settings

    provider = provider_from_settings(embeddings, model)
    async with AsyncExitStack() as stack:
        if provider is not None and hasattr(provider, "close"):
            stack.push_async_callback(provider.close)
        store = await stack.enter_async_context(opened(options))
        made = None if provider is None else await build_index(store, provider.name)
        dropped = await drop_unused_indexes(store)
    output = options.output
    if options.json:
        output.record({"model": None if provider is None else provider.name, "indexed": made, "dropped": dropped})
    elif provider is not None:
        output.line(f"Vectors of {provider.name} {'are indexed' if made else 'are not indexed'}.")
    if provider is None:
        output.note("No model is named (--embeddings, TURNKEEP_EMBEDDINGS): no index was made.")
    elif not made:
        output.note("Another process makes it, pgvector is missing, or they have more than 4,000 dimensions.")
    for name in dropped:
        output.note(f"{name}: dropped, no vector is of its model.")
    return Exit.FAILURE if made is False else Exit.OK


async def _within(store: AsyncStore, text: str) -> dict[str, Any]:
    found = await find(store, text)
    if found.at is not None:
        raise InvalidInputError(f"--conversation: {text!r} names a checkpoint: name a conversation or a branch")
    return {"conversation": found.conversation, "branch": found.branch}


def _moment(text: str) -> datetime | timedelta:
    """A length of time back from now, or a time of this machine's zone."""
    if is_age(text):
        return age("--since", text)
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInputError(
            f"--since: {text!r} is neither an age such as 7d (min, h, d, w) nor a date such as 2026-11-30"
        ) from None


def _print(options: Options, result: SearchResult, asked: _Asked) -> None:
    output = options.output
    if options.json:
        for hit in result.hits:
            output.record({**asdict(hit), "place": place(hit)})
    else:
        now = datetime.now(UTC)
        for number, hit in enumerate(result.hits):
            if number and output.terminal:
                output.line()
            _print_hit(output, hit, now)
    if not result.hits:
        output.note("Nothing was found.")
    for note in notes(result):
        output.note(note)


def _print_hit(output: Output, hit: Hit, now: datetime) -> None:
    from rich.text import Text

    named = place(hit)
    own = "" if named.startswith(hit.external_id) or hit.external_id == str(hit.conversation_id) else hit.external_id
    about = [one_line(cut(text, _LONGEST_NAME, 1)[0]) for text in (own, hit.title, hit.agent_id) if text]
    when = [] if hit.created_at is None else [ago(hit.created_at, now)]
    archived = ["archived"] if hit.archived else []
    output.line((named, "cyan"), "  ", "  ".join([*about, *when, *archived, f"{hit.score:.3f}"]))
    if not hit.snippet:
        return
    snippet = Text()
    end = 0
    for start, stop in hit.marks:
        snippet.append(one_line(hit.snippet[end:start]))
        word = one_line(hit.snippet[start:stop])
        snippet.append(word if output.terminal else f"**{word}**", "bold yellow")
        end = stop
    snippet.append(one_line(hit.snippet[end:]))
    output.block(snippet)


def place(hit: Hit) -> str:
    """What names a hit's turn on the command line: the conversation by its own id, where that needs no quotes."""
    plain = _PLAIN.fullmatch(hit.external_id) and hit.external_id != str(hit.conversation_id)
    own = hit.external_id if plain else str(hit.conversation_id)
    branch = "" if hit.branch == hit.current_branch else f":{hit.branch}"
    return f"{own}{branch}@{hit.turn_index}"


def notes(result: SearchResult) -> list[str]:
    """What a search could not do or see, in words."""
    from turnkeep.search.search import NO_PROVIDER

    found = []
    if result.text_only is not None:
        how = " (--embeddings, TURNKEEP_EMBEDDINGS)" if result.text_only == NO_PROVIDER else ""
        found.append(f"By words only: {result.text_only}{how}.")
    if not result.all_words:
        found.append("Very many turns have these words: the newest of them were ranked.")
    if result.left_out:
        words = ", ".join(result.left_out[:_MOST_NAMED]) + (", …" if len(result.left_out) > _MOST_NAMED else "")
        found.append(f"The query is long: turns that have only some of its words were not looked for by {words}.")
    missing = result.not_indexed
    for number, what in (
        (missing.text, "not indexed yet: `turnkeep embed` does it"),
        (
            missing.embeddings,
            f"without an embedding of {result.model} yet, and found by words only: `turnkeep embed` makes them",
        ),
        (missing.dead, "could not be indexed: `turnkeep doctor` says more"),
    ):
        if number:
            more = "more than " if number >= _MOST_COUNTED else ""
            found.append(f"{more}{count(number, 'turn')} {what}.")
    if missing.at_least and missing.text < _MOST_COUNTED:
        found.append("Very many turns wait to be indexed, and not all were looked at: there may be more of these.")
    return found
