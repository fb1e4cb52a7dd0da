"""What a demo came to, in words for somebody who has never seen Turnkeep."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from turnkeep.demo.events import Target
from turnkeep.demo.report import Report
from turnkeep.demo.show import count

_PROBLEMS_SHOWN = 8


def print_summary(console: Console, report: Report) -> None:
    """Print the closing words."""
    console.print()
    console.print(_verdict(report))
    console.print()
    for fact in _facts(report):
        console.print(_indented(fact))
    problems = [*report.findings.problems, *report.stuck]
    if problems:
        console.print()
        for problem in problems[:_PROBLEMS_SHOWN]:
            console.print(_indented(problem, "red"))
        if len(problems) > _PROBLEMS_SHOWN:
            console.print(_indented(f"and {count(len(problems) - _PROBLEMS_SHOWN, 'problem')} more: --json lists all"))
    console.print()
    console.print(Text(_meaning(report)))


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def _verdict(report: Report) -> Text:
    if report.ok:
        return Text("Nothing acknowledged was lost, and nothing was done twice that must not be.", style="bold green")
    if report.sabotage:
        return Text("The sabotage was found, as it should be: exit code 1.", style="bold yellow")
    return Text("The demo FAILED: what came back is not what has to be there.", style="bold red")


def _facts(report: Report) -> list[str]:
    found = report.findings
    facts = [
        f"{count(len(report.kills), 'kill')} with SIGKILL:",
        *(f"  {_hits(report, target)}" for target in Target),
        f"{found.acknowledged} of {found.requests} requests acknowledged: {found.lost} lost, {found.doubled} doubled, "
        f"{found.answered} answered exactly once",
        f"{found.equal} of {found.conversations} transcripts equal those of a run that nobody disturbed, "
        f"{count(found.messages, 'message')}",
        f"{count(found.tool_calls, 'tool call')}, each with one result: {found.calls_again} run again, "
        f"{found.unknown} reported to the model as unknown, {found.uncertain} left uncertain",
        f"{found.effects} of {found.effects_due} transactional effects exactly once",
        f"{count(report.replies_again, 'reply', 'replies')} generated again",
    ]
    if report.worst_recovery is not None and not report.sabotage:
        facts.append(f"{report.worst_recovery:.1f} s at worst from a kill until all that it had interrupted went on")
    facts.append(f"{report.seconds:.1f} s in all, with --seed {report.seed}; everything has been removed again")
    return facts


def _hits(report: Report, target: Target) -> str:
    hits = Counter(kill.seen for kill in report.kills if kill.target is target)
    seen = "; ".join(f"{words}{f' ({times} times)' if times > 1 else ''}" for words, times in hits.items())
    return f"{hits.total()} × {target.words}: {seen}" if hits else f"0 × {target.words}"


def _meaning(report: Report) -> str:
    if report.ok:
        return (
            "A request whose post has returned is in Postgres, and answered, whatever is killed next. The next worker "
            "goes on from the last checkpoint, as it would at its first start: a reply that broke off is asked for "
            "again, a tool runs again if that does no harm, takes effect with its result or not at all if it is "
            "transactional, and otherwise the model is told that nobody knows. The model's replies and the tools' "
            "results are recorded ones; the agents, the workers, the writes and the kills are real.\n\n"
            "Next: `turnkeep --help`, and the README for your own Postgres. To see the check fail: "
            "`turnkeep demo --sabotage`."
        )
    if report.sabotage:
        return (
            "This client acknowledged each request before it was committed. What was in flight when Postgres was "
            "killed is gone, and its conversation waits for ever. Without --sabotage the acknowledgement follows the "
            "commit, and the same check finds nothing."
        )
    return f"Please report this with the output of `turnkeep demo --json --seed {report.seed}`."
