"""The array types of the project. Shapes stand beside each use."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
FeatureArray: TypeAlias = NDArray[Any]
"""Features and KV rows keep the dtype of the graphs: float32, float16 or ml_dtypes.bfloat16."""
