"""TensorRT's messages, collected, so that an error can be told in one sentence instead of many lines."""

import logging
import re
from typing import Any

from vvs.runtime.tensorrt_package import TensorRT

_logger = logging.getLogger("vvs.tensorrt")
_LEVELS = {"VERBOSE": logging.DEBUG, "INFO": logging.DEBUG, "WARNING": logging.INFO}
# What TensorRT puts around the words that matter: function, error number, source location.
_HEAD = re.compile(r"^(\[[^\]]*\]\s*)?([\w:]+::\w+:\s*)?(Error Code \d+:\s*)?")
_PLACE = re.compile(r"\s*\bIn \w+ at \S+:\d+")


class Messages:
    """What was said since it was last cleared."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def clear(self) -> None:
        """Forget everything."""
        self.errors.clear()
        self.warnings.clear()

    def first_error(self) -> str:
        """The first error in words, or that there is none."""
        return plain(self.errors[0]) if self.errors else "it gives no reason"


def plain(message: str) -> str:
    """A message without its source locations and numbers, on one line."""
    first = " ".join(message.split())
    return _PLACE.sub("", _HEAD.sub("", first)).strip().rstrip(".")


def make_logger(package: TensorRT) -> tuple[Any, Messages]:
    """A TensorRT logger that prints nothing, and the messages it collects."""
    base: Any = package.api.ILogger
    messages = Messages()

    class Logger(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            level = _LEVELS.get(severity.name, logging.INFO)
            _logger.log(level, "%s", message)
            if severity.name == "WARNING":
                messages.warnings.append(message)
            elif severity.name in ("ERROR", "INTERNAL_ERROR"):
                messages.errors.append(message)

    return Logger(), messages
