"""KVCache: keys and values of R requests at fixed addresses, and gathering some requests' rows.

Plain numpy; which rows survive a step is decided by the loop.
"""

from collections.abc import Sequence

import numpy as np

from vvs.arrays import FeatureArray, IntArray
from vvs.errors import BackendError
from vvs.geometry import Geometry


class KVCache:
    """Keys and values ``[2 L, g R, H, S, Dh]``: layer i's keys at 2 i, its values at 2 i + 1.

    Rows are appended, and what lies below a request's length does not change. So a gathered copy of some
    requests is topped up, not copied again, when the same requests are gathered in the next call.
    """

    def __init__(self, geometry: Geometry, layers: int, requests: int, dtype: str) -> None:
        g, S = geometry.guidance_rows, geometry.capacity
        self.requests = requests
        self._shape = (2 * layers, g, requests, geometry.heads, S, geometry.head_dim)
        self._rows: FeatureArray = np.zeros(self._shape, dtype)
        self._everyone = list(range(requests))
        self._gathered: FeatureArray | None = None
        self.empty()

    def empty(self) -> None:
        """Forget all rows, for another run. Their memory stays where it is."""
        self._length = [0] * self.requests
        # Which sequence (of g R) lies in each row of the gathered copy, and how much of it.
        self._slots = [(-1, 0)] * (self._shape[1] * self.requests)

    def is_whole(self, rows: IntArray) -> bool:
        """Whether ``rows`` are all requests in order, so that nothing needs to be gathered."""
        return bool(rows.tolist() == self._everyone)

    def whole(self) -> FeatureArray:
        """The cache itself, ``[2 L, g R, H, S, Dh]``."""
        layers, g, R, *row = self._shape
        return self._rows.reshape(layers, g * R, *row)

    def gathered(self, n: int) -> FeatureArray:
        """Memory that :meth:`gather` fills for n requests, ``[2 L, g n, H, S, Dh]``, contiguous per layer."""
        if self._gathered is None:
            self._gathered = np.zeros_like(self.whole())
        return self._gathered[:, : self._shape[1] * n]

    def gather(self, rows: IntArray, past_length: IntArray) -> None:
        """Copy the first ``past_length[i]`` rows of requests ``rows`` into the memory of :meth:`gathered`."""
        memory = self.gathered(rows.size)
        for i, (request, past) in enumerate(zip(rows.tolist(), past_length.tolist(), strict=True)):
            for guidance in range(self._shape[1]):
                slot = guidance * rows.size + i
                sequence = guidance * self.requests + request
                holder, held = self._slots[slot]
                start = held if holder == sequence else 0
                if start < past:
                    memory[:, slot, :, start:past] = self._rows[:, guidance, request, :, start:past]
                self._slots[slot] = (sequence, max(start, past))

    def append(
        self, rows: IntArray, new: FeatureArray, kept: Sequence[IntArray], past_length: IntArray
    ) -> None:
        """Write the new rows that survive.

        Args:
            rows: n requests.
            new: ``[2 L, g n, H, T, Dh]``.
            kept: for each of them, indices into T.
            past_length: ``[n]`` where they land.

        """
        self._write(rows, new, [(keep.size, _stretch(keep)) for keep in kept], past_length)

    def append_leading(
        self, rows: IntArray, new: FeatureArray, count: IntArray, past_length: IntArray
    ) -> None:
        """Write new rows of which the first ``count`` ``[n]`` survive; the rest is as in :meth:`append`."""
        self._write(rows, new, [(size, slice(size)) for size in count.tolist()], past_length)

    def _write(
        self,
        rows: IntArray,
        new: FeatureArray,
        kept: Sequence[tuple[int, slice | IntArray]],
        past_length: IntArray,
    ) -> None:
        layers, g, _, H, S, Dh = self._shape
        by_guidance = new.reshape(layers, g, rows.size, H, -1, Dh)
        starts = past_length.tolist()
        for i, (request, start, (size, places)) in enumerate(zip(rows.tolist(), starts, kept, strict=True)):
            end = start + size
            if end > S:
                raise BackendError(f"a KV cache of {S} rows per sequence cannot hold {end}")
            self._rows[:, :, request, :, start:end] = by_guidance[:, :, i][:, :, :, places]
            if start < self._length[request]:
                self._forget(request, start)
            self._length[request] = end

    def _forget(self, request: int, start: int) -> None:
        """Make gathered copies of a request that is rewritten from ``start`` on stale."""
        self._slots = [
            (holder, min(held, start) if holder % self.requests == request else held)
            for holder, held in self._slots
        ]


def _stretch(indices: IntArray) -> slice | IntArray:
    """``indices`` as a slice where they follow one another: copying a stretch is several times cheaper."""
    if not indices.size:
        return slice(0)
    places = indices.tolist()
    first = places[0]
    follows = places == list(range(first, first + len(places)))
    return slice(first, first + len(places)) if follows else indices
