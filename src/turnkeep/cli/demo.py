"""`turnkeep demo`: conversations that survive kill -9, shown and proved."""

from __future__ import annotations

import random
from typing import Annotated

import typer

from turnkeep.cli.failures import Exit
from turnkeep.cli.options import Options, private_command

_MOST_SEEDS = 1_000_000


@private_command
def demo(
    options: Options,
    sabotage: Annotated[
        bool,
        typer.Option("--sabotage", help="Let the client acknowledge before the commit: the check must fail."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Kill in the order that an earlier demo's seed gave.")
    ] = None,
) -> Exit:
    """Kill model server, worker and Postgres under twelve agents at work; then count what was lost or done twice.

    Takes about forty seconds, on a private Postgres that is removed at the end. Exit code 0 says: nothing.
    """
    from turnkeep.demo.events import Unseen
    from turnkeep.demo.run import run_demo
    from turnkeep.demo.show import shown
    from turnkeep.demo.summary import print_summary

    seed = random.randrange(_MOST_SEEDS) if seed is None else seed
    output = options.output
    if options.json:
        report = run_demo(Unseen(), seed=seed, sabotage=sabotage)
        output.record(report.record())
    elif options.quiet:
        report = run_demo(Unseen(), seed=seed, sabotage=sabotage)
        print_summary(output.console, report)
    else:
        with shown(output.console) as view:
            report = run_demo(view, seed=seed, sabotage=sabotage)
        print_summary(output.console, report)
    return Exit.OK if report.ok else Exit.FAILURE
