"""How often a search finds what was meant, on real text: `make recall`.

Three collections of questions whose right answer is known: the Perl FAQ (Debian's package perl-doc), where a question
looks for its answer, and the docstrings of numpy and of Python's standard library, where the first sentence looks for
the rest. Each answer is a conversation of one turn, each search the whole way: `Search` on a database that
`EmbedWorker` has filled. Printed is the share of the questions whose answer is among the first ten hits.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

import turnkeep
from turnkeep import embedded
from turnkeep.embedded import EmbeddedPostgres
from turnkeep.search import EmbedWorker, LocalEmbeddings, Search

Pair = tuple[str, str]

MODES = ("text", "semantic", "hybrid")
FIRST = 10
QUESTIONS = 300  # of each collection, evenly spread
WRITERS = 8
_SENTENCE = re.compile(r"(.+?[.?!])(?:\s|$)", re.DOTALL)
_NOT_THE_LIBRARY = {"test", "tests", "idlelib", "lib2to3", "site-packages"}
_LEAST_WORDS, _LEAST_CHARACTERS = 4, 150


def docstrings(root: Path) -> list[Pair]:
    """First sentences and what comes after them, each once."""
    pairs: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        if not _NOT_THE_LIBRARY & {*path.relative_to(root).parts}:
            for text in _docstrings(path):
                if sentence := _SENTENCE.match(text):
                    question, answer = " ".join(sentence[1].split()), text[sentence.end() :].strip()
                    if len(question.split()) >= _LEAST_WORDS and len(answer) >= _LEAST_CHARACTERS:
                        pairs.setdefault(answer, question)
    once = {question: answer for answer, question in pairs.items()}
    return [*once.items()]


def _docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield ast.get_docstring(node) or ""


def perl_faq(place: Path) -> list[Pair]:
    """Questions and answers of the Perl FAQ."""
    subprocess.run(["apt-get", "download", "-qq", "perl-doc"], cwd=place, check=True)
    (package,) = place.glob("perl-doc_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, place], check=True)
    pairs = []
    for path in sorted(place.rglob("perlfaq[1-9].pod")):
        for part in re.split(r"^=head2 ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            question, _, answer = part.partition("\n\n")
            answer = re.split(r"^=head1 ", answer, flags=re.MULTILINE)[0]
            pairs.append((" ".join(_plain(question).split()), _plain(answer).strip()))
    return [(q, a) for q, a in pairs if len(q.split()) >= _LEAST_WORDS - 1 and len(a) >= _LEAST_CHARACTERS]


def _plain(pod: str) -> str:
    """POD without its marks."""
    pod = re.sub(r"^X<.*>$", "", pod, flags=re.MULTILINE)
    return re.sub(r"[A-Z]<+\s*((?:[^<>]|<[^<>]*>)*?)\s*>+", r"\1", pod)


async def measure(dsn: str, pairs: list[Pair]) -> tuple[dict[str, float], dict[str, float]]:
    """The recall of each mode, and its median milliseconds, on a new database."""
    turnkeep.migrate(dsn)
    provider = LocalEmbeddings()
    async with turnkeep.open(dsn) as store:
        waiting = iter(enumerate(pairs))

        async def write() -> None:
            for number, (_, answer) in waiting:
                branch = await store.conversation(str(number))
                await branch.begin_turn({"role": "assistant", "content": answer}, key="only")
                await branch.save([], final=True)

        await asyncio.gather(*(write() for _ in range(WRITERS)))
        await EmbedWorker(store, provider).run(drain=True)
        search = Search(store, provider)
        chosen = range(0, len(pairs), max(1, len(pairs) // QUESTIONS))
        recall, median = {}, {}
        for mode in MODES:
            found, taken = 0, []
            for number in chosen:
                start = time.perf_counter()
                result = await search.search(pairs[number][0], mode=mode, limit=FIRST)
                taken.append(time.perf_counter() - start)
                assert not result.not_indexed
                found += any(hit.external_id == str(number) for hit in result.hits)
            recall[mode] = found / len(chosen)
            median[mode] = sorted(taken)[len(taken) // 2] * 1000
        return recall, median


def main() -> None:
    """Measure, and print a table for docs/how-to/search.md."""
    with tempfile.TemporaryDirectory(prefix="turnkeep-recall-", ignore_cleanup_errors=True) as named:
        place = Path(named)
        place.chmod(0o755)
        numpy = find_spec("numpy")
        assert numpy is not None
        assert numpy.origin is not None
        collections = {
            "Perl FAQ": perl_faq(place),
            "numpy": docstrings(Path(numpy.origin).parent),
            "standard library": docstrings(Path(sysconfig.get_paths()["stdlib"])),
        }
        print("| collection | answers |", " | ".join(MODES), "|")
        print("| --- | ---: |", " | ".join("---:" for _ in MODES), "|")
        with EmbeddedPostgres.start(place / "postgres") as server:
            for number, (name, pairs) in enumerate(collections.items()):
                with psycopg.connect(server.conninfo, autocommit=True) as connection:
                    database = f"recall_{number}"
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
                recall, median = asyncio.run(measure(make_conninfo(server.conninfo, dbname=database), pairs))
                cells = (f"{recall[mode]:.2f} ({median[mode]:.0f} ms)" for mode in MODES)
                print(f"| {name} | {len(pairs):,} |", " | ".join(cells), "|", flush=True)
        embedded.stop(place / "postgres")


if __name__ == "__main__":
    main()
