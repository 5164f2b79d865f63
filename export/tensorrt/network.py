"""Network: ONNX through TensorRT's parser; whatever it does not take becomes one sentence."""

from typing import Any, NamedTuple

from vvs.errors import ExportError
from vvs.export.tensorrt.graph_source import GraphSource
from vvs.runtime.tensorrt_log import Messages, plain
from vvs.runtime.tensorrt_package import TensorRT


class Network(NamedTuple):
    """A parsed network. The parser owns the weights, so it must live as long."""

    network: Any
    parser: Any


def parse(package: TensorRT, builder: Any, logger: Any, messages: Messages, source: GraphSource) -> Network:
    """Parse a graph, strongly typed.

    Raises:
        ExportError: an operator that TensorRT lacks, or a graph that is no valid ONNX.

    """
    messages.clear()
    network = package.network(builder)
    parser = package.api.OnnxParser(network, logger)
    if not parser.parse(source.model, str(source.file)):
        raise ExportError(_refusal(package, parser, source))
    if not network.num_outputs:
        raise ExportError(f"{source.file} has no outputs; export the bundle again")
    return Network(network, parser)


def _refusal(package: TensorRT, parser: Any, source: GraphSource) -> str:
    if not parser.num_errors:
        return f"{source.file} cannot be parsed by {package.title}, which gives no reason"
    error = parser.get_error(0)
    operator, node = error.node_operator(), error.node_name()
    if not operator:
        return f"{source.file} cannot be parsed by {package.title}: {plain(error.desc())}"
    code = error.code().name.lower().replace("_", " ")
    return (
        f"{source.file} has the operator {operator} (node {node!r}), but {package.title} does not support it "
        f"there ({code}); renew it with `{package.install} --upgrade`, "
        "or run the bundle with --backend onnxruntime"
    )
