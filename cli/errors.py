"""Errors: whatever goes wrong in a command becomes one sentence on stderr and an exit code."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

from vvs.errors import BundleError, CancelledError, PromptError, SettingsError, VvsError

TRACEBACK_VARIABLE = "VVS_TRACEBACK"

FAILED = 1
"""Something could not be done."""
BAD_INPUT = 2
"""Something that was given is wrong: usage, settings, prompts, bundles."""
INTERRUPTED = 130
"""Ctrl-C."""

TORCH_OUT_OF_MEMORY = "can't allocate memory"
"""What PyTorch says where Python raises MemoryError; its exception is a plain RuntimeError."""

_BAD_INPUT = (SettingsError, PromptError, BundleError)

P = ParamSpec("P")


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command end with a sentence and an exit code. ``VVS_TRACEBACK=1`` lets exceptions through."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            command(*args, **kwargs)
            return
        try:
            command(*args, **kwargs)
        except (KeyboardInterrupt, CancelledError):
            fail("interrupted; what was finished has been kept", INTERRUPTED)
        except _BAD_INPUT as error:
            fail(str(error), BAD_INPUT)
        except VvsError as error:
            fail(str(error), FAILED)
        except BrokenPipeError:
            # Whoever reads our output has enough. Python would complain about it once more on exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except OSError as error:
            fail(_of_system(error), FAILED)
        except MemoryError:
            _no_memory()
        except RuntimeError as error:
            if TORCH_OUT_OF_MEMORY not in str(error):
                raise
            _no_memory()

    return run


def _no_memory() -> NoReturn:
    fail("there is not enough memory; a smaller --batch needs less", FAILED)


def fail(sentence: str, code: int) -> NoReturn:
    """Say what went wrong and end the command."""
    typer.echo(f"vvs: {' '.join(sentence.split())}", err=True)
    raise typer.Exit(code) from None


def _of_system(error: OSError) -> str:
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    return f"{error.filename}: {reason}" if error.filename else reason
