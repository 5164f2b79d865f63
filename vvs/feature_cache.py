"""FeatureCache: the newest target features of one request, which drafting after a skip reuses."""

import numpy as np

from vvs.arrays import FeatureArray


class FeatureCache:
    """The last ``window`` image-token features of a request.

    Bounded, so that a step costs the same however late it is.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._features: FeatureArray | None = None

    def push(self, features: FeatureArray) -> None:
        """Append features ``[g, n, D]`` in order of position."""
        if self._features is not None and features.shape[1] < self._window:
            features = np.concatenate([self._features, features], axis=1)
        # A copy: a view would keep the whole batch's features alive.
        self._features = features[:, -self._window :].copy()

    def stale(self, length: int) -> FeatureArray:
        """Return the last ``length`` features ``[g, length, D]``, oldest first.

        If there are fewer, the last one is repeated at the end.
        """
        if self._features is None or length > self._window:
            raise RuntimeError(
                f"{length} stale features are asked of a cache of {self._window} that may be empty"
            )
        held = self._features[:, -length:]
        missing = length - held.shape[1]
        return np.concatenate([held, np.repeat(held[:, -1:], missing, axis=1)], axis=1) if missing else held
