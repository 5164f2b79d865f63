"""Timing cache: what TensorRT measured of its kernels, kept from build to build.

A cache is right for one version and one architecture, so both are part of its file's name: ``trt.cache``
becomes ``trt.tensorrt-10.13.3.9.sm_89.cache``. A cache that cannot be used only warns; it stops no build.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vvs.runtime.tensorrt_log import Messages, plain
from vvs.runtime.tensorrt_package import TensorRT
from vvs.runtime.whole_file import whole_file

Warn = Callable[[str], None]


def cache_path(file: Path, package: TensorRT, arch: str) -> Path:
    """Where the cache of this version and architecture lies."""
    return file.with_name(f"{file.stem}.{package.name}-{package.version}.{arch}{file.suffix}")


def use_cache(file: Path, config: Any, messages: Messages, warn: Warn) -> None:
    """Give the builder the cache in ``file``, or an empty one to fill."""
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        warn(f"the timing cache {file} cannot be read ({error.strerror}), so kernels are timed afresh")
        content = b""
    reason = _set(config, content, messages)
    if reason and content:
        warn(f"the timing cache {file} is of no use ({reason}), so kernels are timed afresh")
        _set(config, b"", messages)
    messages.clear()


def _set(config: Any, content: bytes, messages: Messages) -> str:
    """Why the content was refused; empty if it was not."""
    messages.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = config.create_timing_cache(content)
        if cache is None or not config.set_timing_cache(cache, False):
            return messages.first_error()
    complaints = messages.warnings or messages.errors
    return plain(complaints[-1]) if complaints else ""


def keep_cache(file: Path, config: Any, warn: Warn) -> None:
    """Write what the builder's cache holds now."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = config.get_timing_cache()
        content = cache.serialize() if cache is not None else None
    if content is None:
        return
    try:
        with whole_file(file) as temporary, temporary.open("wb") as stream:
            stream.write(content)
    except OSError as error:
        warn(f"the timing cache {file} cannot be written ({error.strerror})")
