"""What a demo came to, in words for somebody who has never seen Turnkeep."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from turnkeep.demo.events import Target
from turnkeep.demo.run import Report
from turnkeep.demo.show import count

_PROBLEMS_SHOWN = 8


def print_summary(console: Console, report: Report) -> None:
    """Print the closing words."""
    console.print()
    console.print(_verdict(report))
    console.print()
    for fact in _facts(report):
        console.print(_indented(fact))
    problems = report.findings.problems
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
        return Text("Nothing acknowledged was lost, and nothing was stored twice.", style="bold green")
    if report.sabotage:
        return Text("The sabotage was found, as it should be: exit code 1.", style="bold yellow")
    return Text("The demo FAILED: what came back is not what was saved.", style="bold red")


def _facts(report: Report) -> list[str]:
    found = report.findings
    targets = Counter(kill.target for kill in report.kills)
    hit = ", ".join(f"{targets[target]} × {target.words}" for target in Target if targets[target])
    in_flight = sum(kill.in_flight for kill in report.kills)
    facts = [
        f"{count(len(report.kills), 'kill')} with SIGKILL ({hit}), {count(in_flight, 'save')} in flight under them",
        f"{found.acknowledged} of {found.saves} saves acknowledged: {found.missing} missing, "
        f"{found.duplicated} stored twice, {found.unacknowledged} left open",
        f"{found.equal} of {found.conversations} conversations equal their source, character by character",
        f"{count(found.messages, 'message')} and {count(found.tool_results, 'tool result')} are stored",
    ]
    if report.sent_again:
        facts.append(
            f"{count(report.sent_again, 'save')} sent again by the next writer; "
            f"{report.repeated} had been committed before, and were not stored again"
        )
    if report.worst_recovery is not None and not report.sabotage:
        facts.append(f"{report.worst_recovery:.1f} s at worst from a kill to the next acknowledged save")
    facts.append(f"{report.seconds:.1f} s in all, with --seed {report.seed}; everything has been removed again")
    return facts


def _meaning(report: Report) -> str:
    if report.ok:
        return (
            "A save that has returned is in Postgres, whatever is killed next. One that has not is sent again under "
            "the same write id, and stored once: those in flight, and those intended and not yet sent. A new writer "
            "restores its conversations and goes on from there, as it would have at its first start. The conversations "
            "are recorded ones: no model and no tool runs here; Postgres, the writes and the kills are real.\n\n"
            "Next: `turnkeep --help`, and the README for your own Postgres. To see the check fail: "
            "`turnkeep demo --sabotage`."
        )
    if report.sabotage:
        return (
            "This writer acknowledged each save before its commit, and believed its own words after a kill. What was "
            "in flight is gone, and Turnkeep refused to go on where a turn no longer fitted. Without --sabotage the "
            "acknowledgement follows the commit, and the same check finds nothing."
        )
    return f"Please report this with the output of `turnkeep demo --json --seed {report.seed}`."
