"""Picture: one plot, drawn by matplotlib and written whole or not at all."""

from pathlib import Path
from typing import TYPE_CHECKING

from vvs.errors import SettingsError
from vvs.runtime.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES = (8.0, 5.0)
DOTS_PER_INCH = 120


def new_picture(inches: tuple[float, float] = INCHES) -> "Figure":
    """An empty figure; SettingsError if matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError(
            "plots need matplotlib, which this Python does not have; "
            "install it with `pip install 'vvs-toolkit[bench]'`, or leave them out with --no-plots"
        ) from error
    return Figure(figsize=inches, layout="constrained")


def save_picture(figure: "Figure", path: Path) -> Path:
    """Write a PNG under a temporary name and rename it."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png")
    return path
