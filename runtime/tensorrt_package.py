"""TensorRT, as installed: the one place that names how TensorRT 10.x, 11.x and TensorRT for RTX differ.

Their Python API is the same but for what this module hides:

====================  =========================  ======================  ==================================
..                    TensorRT 10.x              TensorRT 11.x           TensorRT for RTX 1.x
====================  =========================  ======================  ==================================
strong typing         a flag of the network      always; the flag stays  as 11.x
builds for            the GPU at hand            the GPU at hand         any named architecture, no GPU
version-compatible    yes                        yes                     no: it ships no lean runtime
hardware-compatible   yes                        yes                     no: the setter warns and does
                                                                         nothing
refit, strip          yes                        yes                     needs a driver (1.7 fails with
                                                                         "CHECK(status == CUDA_SUCCESS)")
timing cache          yes                        yes                     ignored: it times nothing, and
                                                                         reading one needs a GPU
weight streaming      strongly typed networks    yes                     yes, but not with user allocation
user allocation       no flag                    no flag                 REQUIRE_USER_ALLOCATION, which
                                                                         CUDA graphs need (from 1.2)
engine validity       no                         no                      ``Runtime.get_engine_validity``
CUDA                  12                         13                      13 (the ``cu13`` wheels)
====================  =========================  ======================  ==================================

Packages are imported when they are asked for, never before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from vvs.errors import BackendError, SettingsError

RTX_INSTALL = "pip install tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings"
INSTALL = "pip install tensorrt"
CUDA_OF_TENSORRT = {"10": 12, "11": 13}
NEWEST_CUDA = 13


@dataclass(frozen=True)
class _Flavour:
    """One kind of TensorRT."""

    title: str
    modules: tuple[str, ...]
    """Import names, the first that works is taken."""
    install: str
    names_architectures: bool
    """Whether it builds for architectures that are named, without a GPU."""
    lacks: dict[str, str]
    """Why a feature cannot be asked for, by the flag that asks."""
    driver_only: tuple[str, ...] = ()
    """Flags that work only where there is a GPU driver."""
    idle: tuple[str, ...] = ()
    """Flags that are passed over with a warning, since they would change nothing."""


_FLAVOURS = {
    "tensorrt": _Flavour("TensorRT", ("tensorrt",), INSTALL, names_architectures=False, lacks={}),
    "tensorrt-rtx": _Flavour(
        "TensorRT for RTX",
        ("tensorrt_rtx", "tensorrt_rtx_bindings"),
        RTX_INSTALL,
        names_architectures=True,
        lacks={
            "version-compatible": "it ships no lean runtime",
            "exclude-lean-runtime": "it ships no lean runtime",
            "hardware-compatibility-level": "its builder ignores it; name every architecture with --arch",
        },
        driver_only=("refit", "strip-weights"),
        idle=("timing-cache-file",),
    ),
}
BACKENDS = tuple(_FLAVOURS)


@dataclass(frozen=True)
class TensorRT:
    """An installed TensorRT of either flavour."""

    backend: str
    name: str
    """``tensorrt`` or ``tensorrt_rtx``, whatever module it was imported from."""
    version: str
    api: Any
    """The module."""

    @property
    def _flavour(self) -> _Flavour:
        return _FLAVOURS[self.backend]

    @property
    def title(self) -> str:
        """How people call it, with its version."""
        return f"{self._flavour.title} {self.version}"

    @property
    def install(self) -> str:
        """What installs or renews it."""
        return self._flavour.install

    @property
    def names_architectures(self) -> bool:
        """Whether it builds for named architectures without a GPU."""
        return self._flavour.names_architectures

    @property
    def cuda(self) -> int:
        """Major version of CUDA that its libraries need."""
        if self.backend == "tensorrt":
            return CUDA_OF_TENSORRT.get(self.version.split(".")[0], NEWEST_CUDA)
        return NEWEST_CUDA

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures it can be told to build for; empty if it builds for the GPU at hand."""
        known = getattr(self.api, "ComputeCapability", None)
        if not self.names_architectures or known is None:
            return ()
        return tuple(f"sm_{name[2:]}" for name in known.__members__ if name.startswith("SM"))

    def require(self, flags: Sequence[str], *, driver: bool) -> None:
        """Refuse flags that this flavour does not have, or not on a machine without a driver."""
        for flag in flags:
            if flag in self._flavour.lacks:
                raise SettingsError(
                    f"--{flag} is given, but {self.title} has no such thing: {self._flavour.lacks[flag]}"
                )
            if flag in self._flavour.driver_only and not driver:
                raise SettingsError(
                    f"--{flag} is given, but {self.title} builds such plans only where there is a GPU "
                    f"driver, and this machine has none; leave out --{flag} or build on a machine with a GPU"
                )

    def changes_nothing(self, flag: str) -> bool:
        """Whether the flag would have no effect."""
        return flag in self._flavour.idle

    def network(self, builder: Any) -> Any:
        """Create an empty, strongly typed network."""
        typed = getattr(self.api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if typed is None else 1 << int(typed))

    def aim(self, config: Any, arch: str) -> None:
        """Tell the builder which architecture to build for."""
        if self.names_architectures:
            config.num_compute_capabilities = 1
            capability = getattr(self.api.ComputeCapability, arch.replace("sm_", "SM"))
            if not config.set_compute_capability(capability, 0):
                raise BackendError(f"{self.title} refuses to build for {arch}")

    @property
    def needs_user_allocation(self) -> bool:
        """Whether plans that CUDA graphs can hold have to be asked for."""
        return hasattr(self.api.BuilderFlag, "REQUIRE_USER_ALLOCATION")

    def allow_graph_capture(self, config: Any) -> None:
        """Ask for a plan that never allocates, where that has to be asked for."""
        if self.needs_user_allocation:
            config.set_flag(self.api.BuilderFlag.REQUIRE_USER_ALLOCATION)

    def flag(self, name: str) -> Any:
        """A builder flag by its name in the API."""
        flag = getattr(self.api.BuilderFlag, name, None)
        if flag is None:
            raise SettingsError(f"{self.title} has no builder flag {name}; renew it with `{self.install}`")
        return flag


def load_tensorrt(backend: str) -> TensorRT:
    """Import TensorRT.

    Raises:
        SettingsError: there is no such backend.
        BackendError: the package is not installed or broken, with the command that installs it.

    """
    if backend not in _FLAVOURS:
        raise SettingsError(f"--backend is {backend!r}, but it must be one of {', '.join(BACKENDS)}")
    flavour = _FLAVOURS[backend]
    for module in flavour.modules:
        try:
            api = import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise _broken(flavour, error) from error
            continue
        except Exception as error:  # a package whose libraries do not load may raise anything
            raise _broken(flavour, error) from error
        if hasattr(api, "__version__"):  # any folder of that name on the path imports as an empty package
            return TensorRT(backend, flavour.modules[0], str(api.__version__), api)
    raise BackendError(
        f"{flavour.title} is not installed, but the backend {backend!r} needs it; "
        f"install it with `{flavour.install}`"
    )


def _broken(flavour: _Flavour, error: Exception) -> BackendError:
    return BackendError(
        f"{flavour.title} is installed but cannot be loaded ({error}); reinstall it with `{flavour.install}`"
    )
