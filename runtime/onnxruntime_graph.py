"""Graph and Call: one ONNX graph on ONNX Runtime, and running it again and again over memory that stays put.

Knows names, dtypes and buffers; what the graphs mean is the business of the session.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from vvs.errors import BackendError, BundleError
from vvs.manifest import GraphSpec, TensorSpec


class ProviderChoice(NamedTuple):
    """Where a graph runs, and the options of that provider."""

    name: str
    options: Mapping[str, str] = {}


CPU = ProviderChoice("CPUExecutionProvider")
CUDA_PROVIDER = "CUDAExecutionProvider"
CUDA_INSTALL = "pip uninstall onnxruntime && pip install onnxruntime-gpu"
"""The two packages hold the same module, so that one must go."""

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


class Graph:
    """One opened graph of a bundle. Safe to share between threads."""

    def __init__(
        self,
        name: str,
        file: Path,
        spec: GraphSpec,
        options: ort.SessionOptions,
        provider: ProviderChoice = CPU,
    ) -> None:
        self.name = name
        self.dtypes = {tensor.name: tensor.dtype for tensor in (*spec.inputs, *spec.outputs)}
        try:
            # What another provider does not take falls to the CPU, which is always there.
            choices = [provider] if provider == CPU else [provider, CPU]
            providers = [(choice.name, dict(choice.options)) for choice in choices]
            self.session = ort.InferenceSession(str(file), options, providers=providers)
        except Exception as error:  # ONNX Runtime has a dozen exception types and no common base
            raise BackendError(f"ONNX Runtime cannot open {file}: {_sentence(error)}") from error
        self._check("input", spec.inputs, self.session.get_inputs())
        self._check("output", spec.outputs, self.session.get_outputs())

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run once on arrays of any shape the graph takes; outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        try:
            return dict(zip(names, self.session.run(names, dict(feeds)), strict=True))
        except Exception as error:
            raise failure(self.name, error) from error

    def _check(self, kind: str, expected: Sequence[TensorSpec], found: Iterable[Any]) -> None:
        """Raise BundleError unless the graph's tensors are those of the manifest."""
        by_name = {tensor.name: tensor for tensor in found}
        for spec in expected:
            if spec.name not in by_name:
                raise BundleError(
                    f"the graph {self.name!r} has no {kind} {spec.name!r}, which the manifest lists"
                )
            tensor = by_name.pop(spec.name)
            dtype = _DTYPES.get(tensor.type, tensor.type)
            if dtype != spec.dtype or not _same_shape(tensor.shape, spec.shape):
                raise BundleError(
                    f"the {kind} {spec.name!r} of the graph {self.name!r} is {dtype} {list(tensor.shape)}, "
                    f"but the manifest says {spec.dtype} {list(spec.shape)}"
                )
        if by_name:
            raise BundleError(
                f"the graph {self.name!r} has an {kind} {min(by_name)!r} that the manifest does not list"
            )


class Call:
    """One graph at one set of shapes, bound once to fixed memory: fill the inputs, run, read the outputs.

    Belongs to one session. Outputs are overwritten by the next run.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        caches: Mapping[str, ort.OrtValue],
    ) -> None:
        """Bind ``inputs``, ``outputs``, and ``caches``: inputs over memory that other calls share."""
        self.inputs = inputs
        self.outputs = outputs
        self._graph = graph
        self._binding = graph.session.io_binding()
        for name, value in (wrapped(inputs) | dict(caches)).items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in wrapped(outputs).items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        """Run the graph."""
        try:
            self._graph.session.run_with_iobinding(self._binding)
        except Exception as error:
            raise failure(self._graph.name, error) from error


def wrapped(arrays: Mapping[str, NDArray[Any]]) -> dict[str, ort.OrtValue]:
    """Arrays as ONNX Runtime takes them, over the same memory."""
    return {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}


class Pool:
    """Memory by name, shared by the calls of one session: only one of them is under way at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[Any]] = {}

    def view(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return memory of this shape.

        A buffer that is too small is replaced; calls that are bound to the old one keep it and stay right.
        """
        size = int(np.prod(shape))
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.zeros(size, dtype)
        return buffer[:size].reshape(shape)


def failure(graph: str, error: Exception) -> BackendError:
    """Why a graph did not run."""
    return BackendError(f"the graph {graph!r} failed: {_sentence(error)}")


def _same_shape(found: Sequence[Any], expected: Sequence[int | str]) -> bool:
    """Fixed sizes must be equal; a symbolic one stands for any."""
    return len(found) == len(expected) and all(
        isinstance(have, str | None) or isinstance(want, str) or have == want
        for have, want in zip(found, expected, strict=True)
    )


def _sentence(error: Exception) -> str:
    """First line of an ONNX Runtime message, without its prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].removeprefix("[ONNXRuntimeError] : ")
