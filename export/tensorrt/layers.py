"""Layer information: what an engine is made of, as JSON beside it.

TensorRT's inspector reads it from an open engine, which needs a GPU. Without one, the layers of the network
as it was parsed are written, before TensorRT fuses them; the file says which of the two it holds.
"""

import json
from typing import Any

from vvs.runtime.tensorrt_package import TensorRT


def parsed_layers(package: TensorRT, network: Any) -> str:
    """JSON of the network's layers as parsed."""
    layers = [_layer(network.get_layer(i)) for i in range(network.num_layers)]
    return json.dumps({"builder": package.title, "source": "parsed network", "layers": layers}, indent=1)


def _layer(layer: Any) -> dict[str, Any]:
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    return {
        "name": layer.name,
        "type": layer.type.name,
        "outputs": [
            {"name": t.name, "dtype": t.dtype.name, "shape": _shape(t)} for t in outputs if t is not None
        ],
    }


def _shape(tensor: Any) -> list[int] | None:
    """The shape, -1 where it is not fixed; None where TensorRT does not know its rank yet."""
    try:
        return list(tensor.shape)
    except ValueError:
        return None


def engine_layers(package: TensorRT, logger: Any, plan: Any) -> str | None:
    """JSON from TensorRT's inspector; None where the engine cannot be opened."""
    engine = package.api.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is None:
        return None
    text = engine.create_engine_inspector().get_engine_information(package.api.LayerInformationFormat.JSON)
    return json.dumps({"builder": package.title, "source": "engine", "engine": json.loads(text)}, indent=1)
