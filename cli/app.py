"""The ``vvs`` command line: its commands and the entry point.

Each command has a file of its own; heavy modules are imported by the command that needs them.
"""

import sys
from typing import Annotated

import typer

from vvs import __version__
from vvs.cli.bench import bench
from vvs.cli.build import build
from vvs.cli.check import check
from vvs.cli.doctor import doctor
from vvs.cli.errors import INTERRUPTED, guarded
from vvs.cli.eval import evaluate
from vvs.cli.export import export
from vvs.cli.generate import generate
from vvs.cli.inspect import inspect
from vvs.cli.refit import refit
from vvs.cli.train_drafter import train_drafter
from vvs.cli.tune import tune

app = typer.Typer(
    name="vvs",
    help="Generate images with visual autoregressive models by speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, inspect, doctor, export, build, refit, train_drafter, bench, check, tune):
    app.command()(guarded(command))
# Its function cannot have its name: Python has an eval of its own.
app.command("eval")(guarded(evaluate))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vvs {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Generate images with visual autoregressive models by speculative decoding."""


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
