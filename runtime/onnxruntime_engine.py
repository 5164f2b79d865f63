"""OnnxRuntimeEngine: a bundle's graphs on ONNX Runtime's CPU provider, behind the Engine protocol.

Graphs are opened when first needed and kept; sessions hold the state of a run
(:mod:`vvs.runtime.onnxruntime_session`).
"""

from collections.abc import Callable, Mapping
from threading import Lock
from weakref import WeakMethod

import numpy as np
import onnxruntime as ort

from vvs.arrays import Float32Array, IntArray
from vvs.checks import check_flag, check_integer
from vvs.errors import BackendError, SettingsError
from vvs.geometry import Geometry
from vvs.manifest import DECODE_IMAGE, TARGET
from vvs.precision import PRECISIONS
from vvs.runtime.bundle import Bundle
from vvs.runtime.cpus import usable_cpus
from vvs.runtime.onnxruntime_graph import Graph
from vvs.runtime.onnxruntime_session import OnnxRuntimeSession
from vvs.tree_shape import TreeShape

ONLY_ERRORS = 3


class OnnxRuntimeEngine:
    """Answers :class:`vvs.engine.Engine`. Safe to share between threads.

    Args:
        bundle: what to run; none that computes in bf16.
        threads: threads of one graph execution; None uses every CPU this process may run on.
        mapped: leave weights in their file; see :func:`session_options`.

    """

    def __init__(self, bundle: Bundle, *, threads: int | None = None, mapped: bool = False) -> None:
        require_runnable(bundle)
        self._bundle = bundle
        self._graphs = _Graphs(bundle, session_options(threads, mapped=mapped))
        self._keeping = Lock()
        # The session closed last: most runs follow one of the same size and find their memory ready.
        self._idle: OnnxRuntimeSession | None = None
        self._embeddings = np.ascontiguousarray(bundle.token_embeddings)
        self._graphs(TARGET)  # the one that every run needs, so that what does not fit shows at once

    @property
    def geometry(self) -> Geometry:
        """Sizes of the models."""
        return self._bundle.manifest.geometry

    @property
    def trees(self) -> Mapping[str, TreeShape]:
        """Draft trees of the bundle, by name."""
        return self._bundle.manifest.trees

    def open(self, requests: int) -> OnnxRuntimeSession:
        """Allocate caches for ``requests`` requests, or take those of the last run if it was as large."""
        most = self._bundle.manifest.max_requests
        if not 1 <= requests <= most:
            raise SettingsError(
                f"a batch of {requests} requests was asked for, but this bundle takes 1..{most}"
            )
        with self._keeping:
            idle, self._idle = self._idle, None
        if idle is not None and idle.requests == requests:
            return idle.reopen()
        return OnnxRuntimeSession(
            self._bundle.manifest, requests, self._graphs, self._embeddings, self._shelf()
        )

    def decode_image(self, tokens: IntArray) -> Float32Array:
        """Turn complete token grids ``[R, grid * grid]`` into images ``[R, 3, H, W]`` in [-1, 1]."""
        expected = self.geometry.image_tokens
        if tokens.ndim != 2 or tokens.shape[1] != expected:
            raise SettingsError(f"token grids have shape {tokens.shape}, but must be [R, {expected}]")
        image: Float32Array = self._graphs(DECODE_IMAGE).run({"tokens": tokens})["image"]
        return image.astype(np.float32, copy=False)

    def _keep(self, session: OnnxRuntimeSession) -> None:
        with self._keeping:
            self._idle = session

    def _shelf(self) -> Callable[[OnnxRuntimeSession], None]:
        """Where sessions go; none of them keeps the engine, so that its memory is free once it is let go."""
        keep = WeakMethod(self._keep)

        def give_back(session: OnnxRuntimeSession) -> None:
            if method := keep():
                method(session)

        return give_back


class _Graphs:
    """The graphs of a bundle by name, opened when first asked for."""

    def __init__(self, bundle: Bundle, options: ort.SessionOptions) -> None:
        self._bundle = bundle
        self._options = options
        self._opened: dict[str, Graph] = {}
        self._opening = Lock()

    def __call__(self, name: str) -> Graph:
        with self._opening:
            if name not in self._opened:
                spec = self._bundle.manifest.graphs[name]
                self._opened[name] = Graph(name, self._bundle.file(spec.file), spec, self._options)
            return self._opened[name]


def require_runnable(bundle: Bundle) -> None:
    """Raise BackendError if a bundle computes in bf16."""
    name = bundle.manifest.precision
    if PRECISIONS[name].compute == "bf16":
        raise BackendError(
            f"{bundle.path} is exported in {name}, but ONNX Runtime cannot compute in bf16 on a CPU; "
            "run it with TensorRT (`vvs build`, --backend cuda) or export it with --precision fp32"
        )


def session_options(threads: int | None, *, mapped: bool = False) -> ort.SessionOptions:
    """How graphs run.

    Args:
        threads: of one graph execution; None uses every CPU this process may run on.
        mapped: leave weights in their file, which the system maps into memory, and do not rewrite the graph.
            Opening then copies nothing. Without it, weights are packed anew, and widened to float32, once:
            as much memory as they have in float32, and faster steps.

    """
    if threads is not None:
        check_integer("threads", threads, at_least=1)
    check_flag("mapped", mapped)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or usable_cpus()
    options.log_severity_level = ONLY_ERRORS
    # Target and drafter take turns: threads of the one must not keep spinning while the other runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Fused with its product, an int8 weight would be multiplied with activations rounded to int8. Instead it
    # becomes float32 when a graph is opened: the memory of an fp32 bundle, and its speed. Ways that keep both
    # int8 weights and activations took 4 to 13 times as long, and more memory (16 products of 2048 x 2048).
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    if mapped:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options
