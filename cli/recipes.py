"""Recipes and PyTorch, as commands that work on checkpoints need them."""

from importlib.util import find_spec
from pathlib import Path

from vvs.errors import ExportError

NEEDED = ("torch", "onnx", "onnxscript")
RECIPES = Path("engines")


def require_export_packages() -> None:
    """Raise ExportError if what working on checkpoints needs is not installed."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"this needs {', '.join(missing)}, which this Python does not have; "
            "install it with `pip install 'vvs-toolkit[export]'`"
        )


def find_recipe(recipe: str) -> Path:
    """Return the path of a recipe that is given by path or by name."""
    path = Path(recipe)
    named = RECIPES / f"{recipe}.toml"
    return named if path.suffix != ".toml" and named.is_file() else path
