"""``vvs doctor``: what this machine can run."""

from typing import Annotated

import typer

from vvs.cli.output import print_table, write_json


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what this machine can run, and what to install for the rest."""
    from vvs.runtime.doctor import examine

    report = examine()
    if as_json:
        write_json(report.to_dict())
    else:
        rows = [
            ("ok" if f.ok else "MISSING" if f.required else "-", f.subject, f.found, f.advice)
            for f in report.findings
        ]
        print_table("What this machine can run", ("", "what", "found", "advice"), rows)
    if not report.healthy:
        raise typer.Exit(1)
