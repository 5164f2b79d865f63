"""TensorRTEngines: a bundle's TensorRT engines bound to device memory, one execution context per shape.

A captured graph holds what its context launched, so a context never changes its shapes or its addresses after
it is made. All contexts use one stretch of scratch memory: they run one behind the other on one stream.
"""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from vvs.engine_record import EngineRecord, times
from vvs.errors import BackendError, EngineError
from vvs.manifest import TARGET
from vvs.runtime.bundle import Bundle
from vvs.runtime.device.array import DeviceArray
from vvs.runtime.device.calls import bound_operands
from vvs.runtime.device.cuda import CudaDevice
from vvs.runtime.engine_file import require_pair
from vvs.runtime.tensorrt_loader import LoadedEngine, load_engine
from vvs.runtime.tensorrt_package import load_tensorrt


class TensorRTExecution:
    """One engine at one set of shapes."""

    def __init__(
        self, name: str, context: Any, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray]
    ) -> None:
        self.name = name
        self.operands = bound_operands(inputs, outputs)
        self._context = context

    def enqueue(self, stream: int) -> None:
        """Queue it on the CUDA stream of this handle."""
        if not self._context.execute_async_v3(stream):
            raise BackendError(f"the engine of {self.name} refuses to run; its log says why (`vvs.tensorrt`)")


class TensorRTEngines:
    """Answers :class:`vvs.runtime.device.interface.EngineSet`.

    Args:
        bundle: whose engines.
        backend: ``tensorrt`` or ``tensorrt-rtx``.
        device: the GPU.
        verify: also compare the files' SHA-256.

    """

    def __init__(self, bundle: Bundle, backend: str, device: CudaDevice, *, verify: bool = True) -> None:
        self._bundle = bundle
        self._backend = backend
        self._api = load_tensorrt(backend).api
        self._device = device
        self._setup: Any = device.stream()
        self._verify = verify
        self._loaded: dict[str, LoadedEngine] = {}
        self._loading = Lock()
        self._engine(TARGET)

    def scratch_bytes(self, graphs: tuple[str, ...]) -> int:
        """The most that any profile of these engines needs."""
        return max(
            (
                int(engine.get_device_memory_size_for_profile_v2(profile))
                for engine in (self._engine(graph).engine for graph in graphs)
                for profile in range(engine.num_optimization_profiles)
            ),
            default=0,
        )

    def execution(
        self,
        graph: str,
        inputs: Mapping[str, DeviceArray],
        outputs: Mapping[str, DeviceArray],
        scratch: DeviceArray | None,
    ) -> TensorRTExecution:
        """Bind an engine at the shapes of ``inputs``, in the first profile that holds them."""
        loaded = self._engine(graph)
        profile = fitting_profile(loaded.record, {name: array.shape for name, array in inputs.items()})
        context = loaded.engine.create_execution_context(
            self._api.ExecutionContextAllocationStrategy.USER_MANAGED
        )
        if context is None:
            raise BackendError(f"the engine of {graph} gives no execution context; free some GPU memory")
        if not context.set_optimization_profile_async(profile, int(self._setup.handle)):
            raise BackendError(f"the engine of {graph} refuses its profile {profile}")
        self._device.synchronise(self._setup)
        for name, array in inputs.items():
            if not context.set_input_shape(name, array.shape):
                raise BackendError(f"the engine of {graph} refuses {times(array.shape)} for its input {name}")
        for name, array in (*inputs.items(), *outputs.items()):
            if not context.set_tensor_address(name, array.address):
                raise EngineError(
                    f"the engine of {graph} has no {name}; rebuild it with `{loaded.record.command}`"
                )
        missing = context.infer_shapes()
        if missing:
            raise BackendError(f"the engine of {graph} lacks {', '.join(missing)}")
        if scratch is not None:
            context.set_device_memory(scratch.address, scratch.nbytes)
        return TensorRTExecution(graph, context, inputs, outputs)

    def _engine(self, graph: str) -> LoadedEngine:
        with self._loading:
            if graph not in self._loaded:
                loaded = load_engine(self._bundle, self._backend, graph, verify=self._verify)
                if TARGET in self._loaded:
                    require_pair(loaded.record, self._loaded[TARGET].record)
                self._loaded[graph] = loaded
            return self._loaded[graph]


def fitting_profile(record: EngineRecord, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Index of the first profile that holds all ``shapes``.

    Raises:
        EngineError: none does; names the input, its shape, what the profiles hold, and the command.

    """
    profiles = record.identity.profiles
    for index, profile in enumerate(profiles):
        if all(profile.shapes[name].holds(shape) for name, shape in shapes.items() if name in profile.shapes):
            return index
    name, shape = next(
        (
            (name, shape)
            for name, shape in shapes.items()
            if not any(
                name not in profile.shapes or profile.shapes[name].holds(shape) for profile in profiles
            )
        ),
        next(iter(shapes.items())),
    )
    held = "; ".join(f"{p.use}: {p.shapes[name]}" for p in profiles if name in p.shapes)
    raise EngineError(
        f"the engine of {record.identity.graph} has no profile for {name} of shape {times(shape)} ({held}); "
        f"build it for that with --batch or the shape flags of `{record.command}`"
    )
