"""Backends: what can run a bundle's graphs, by name.

Modules are imported when an engine is opened, never before, so that a machine needs only what it uses.
A new backend is one :class:`Backend` in :data:`BACKENDS`; packages outside the runtime :func:`register`
theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from vvs.decoding import Decoder, Loop
from vvs.engine import Engine
from vvs.errors import BackendError, SettingsError
from vvs.runtime.bundle import Bundle

DEFAULT_BACKEND = "onnxruntime"


class BackendFactory(Protocol):
    """Opens an engine on a checked bundle, or a whole loop that decides on a device; a class is one."""

    def __call__(self, bundle: Bundle, **options: Any) -> Engine | Loop:
        """Open it; ``options`` are the backend's own."""
        ...


@dataclass(frozen=True)
class Backend:
    """How to get at one kind of engine."""

    name: str
    summary: str
    factory: str
    """``module:attribute`` of its :class:`BackendFactory`."""
    requires: tuple[str, ...]
    """Packages it imports that the runtime alone does not bring."""
    install: str
    """What to run when one of them is missing."""
    options: tuple[str, ...] | None = None
    """Names of the options it takes; None leaves that to the factory."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are not installed."""
        return tuple(package for package in self.requires if not _installed(package))

    def load(self) -> BackendFactory:
        """Import the factory; raises BackendError if a package is missing or broken."""
        if self.missing:
            raise BackendError(
                f"the backend {self.name!r} needs {', '.join(self.missing)}, which are not installed; "
                f"install it with `{self.install}`, or use one of: {_names(usable=True)}"
            )
        module, _, attribute = self.factory.partition(":")
        try:
            return cast("BackendFactory", getattr(import_module(module), attribute))
        except (ImportError, OSError) as error:
            raise BackendError(
                f"the backend {self.name!r} cannot be loaded ({error}); reinstall it with `{self.install}`"
            ) from error


BACKENDS: dict[str, Backend] = {
    "onnxruntime": Backend(
        name="onnxruntime",
        summary="ONNX Runtime on the CPU",
        factory="vvs.runtime.onnxruntime_engine:OnnxRuntimeEngine",
        requires=("onnxruntime",),
        install="pip install onnxruntime",
        options=("threads", "mapped"),
    ),
    "cuda": Backend(
        name="cuda",
        summary="TensorRT engines on an NVIDIA GPU, decisions on the GPU",
        factory="vvs.runtime.device.cuda_backend:open_cuda",
        requires=("cuda.core", "cuda.bindings"),
        install="pip install 'vvs-toolkit[cuda]'",
        options=("tensorrt", "cuda_graphs", "whole_image_graph", "verify"),
    ),
    "onnxruntime-cuda": Backend(
        name="onnxruntime-cuda",
        summary="ONNX Runtime on an NVIDIA GPU, decisions on the GPU; no TensorRT",
        factory="vvs.runtime.device.onnxruntime_cuda:open_onnxruntime_cuda",
        requires=("onnxruntime", "cuda.core", "cuda.bindings"),
        install="pip install onnxruntime-gpu 'vvs-toolkit[cuda]'",
        options=("cuda_graphs",),
    ),
    "cuda-on-host": Backend(
        name="cuda-on-host",
        summary="for tests: what the backend cuda does, on a stand-in for a GPU; slow, and no measure of one",
        factory="vvs.runtime.device.host_backend:open_cuda_on_host",
        requires=("onnxruntime",),
        install="pip install onnxruntime",
        options=("threads", "cuda_graphs", "whole_image_graph", "check", "memory", "hook"),
    ),
}
"""Backends by name, the default one first."""


def register(backend: Backend) -> None:
    """Make a backend known by its name; an existing one of that name is replaced."""
    BACKENDS[backend.name] = backend


def open_engine(bundle: Bundle, backend: str = DEFAULT_BACKEND, options: Mapping[str, Any] = {}) -> Engine:
    """Open an engine on ``bundle``.

    Args:
        bundle: what to run.
        backend: one of :data:`BACKENDS`.
        options: the backend's own, such as ``threads`` of ``onnxruntime``.

    Raises:
        SettingsError: an option that the backend does not have.
        BackendError: unknown, not installed, it cannot run this bundle on this machine, or it decides on a
            device, so that no loop on the host can drive it (:func:`open_loop`).

    """
    opened = _open(bundle, backend, options)
    if isinstance(opened, Loop):
        raise BackendError(
            f"the backend {backend!r} decides on the device, so that it cannot be driven call by call; "
            "use onnxruntime for that"
        )
    return opened


def open_loop(bundle: Bundle, backend: str = DEFAULT_BACKEND, options: Mapping[str, Any] = {}) -> Loop:
    """Open the decoding loop on ``bundle``: the backend's own, or the host's over the backend's engine.

    Arguments and errors are those of :func:`open_engine`.
    """
    opened = _open(bundle, backend, options)
    return opened if isinstance(opened, Loop) else Decoder(opened, bundle.codebook)


def _open(bundle: Bundle, backend: str, options: Mapping[str, Any]) -> Engine | Loop:
    if backend not in BACKENDS:
        raise BackendError(f"unknown backend {backend!r}; there is {_names(usable=False)}")
    known = BACKENDS[backend].options
    unknown = [name for name in options if known is not None and name not in known]
    if unknown:
        taken = ", ".join(known or ()) or "none"
        raise SettingsError(f"the backend {backend!r} has no option {unknown[0]!r}; it has {taken}")
    return BACKENDS[backend].load()(bundle, **options)


def _names(*, usable: bool) -> str:
    names = [name for name, backend in BACKENDS.items() if not (usable and backend.missing)]
    return ", ".join(names) or "none (no backend is installed)"


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
