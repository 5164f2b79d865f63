"""Optional: packages that only some measurements need, and what to do where one is missing."""

from importlib import import_module
from types import ModuleType

from vvs.errors import SettingsError


def require(package: str, purpose: str, extra: str) -> ModuleType:
    """Import a package of one of the toolkit's extras.

    Args:
        package: its import name.
        purpose: what needs it, as a sentence begins.
        extra: of ``vvs-toolkit``, which brings it.

    Raises:
        SettingsError: it is not installed, or does not work here; the sentence says how to install it.

    """
    try:
        return import_module(package)
    except ImportError as error:
        raise SettingsError(
            f"{purpose} needs {package}, which this Python does not have; "
            f"install it with `pip install 'vvs-toolkit[{extra}]'`"
        ) from error
    except RuntimeError as error:
        # A torchvision that was built for another torch, most of all.
        raise SettingsError(
            f"{purpose} needs {package}, which does not load here ({error}); "
            "torch and torchvision must be builds that belong together"
        ) from error
