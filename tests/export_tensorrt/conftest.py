"""A manifest made by hand for what needs no builder; engines really built, once, for what does."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vvs.engine_record import EngineRecord
from vvs.export.tensorrt.flags import BuildFlags
from vvs.export.tensorrt.identity import contract_of, identity_of
from vvs.export.tensorrt.profiles import RequestRange, profiles_of
from vvs.geometry import Geometry
from vvs.manifest import ConditioningSpec, FileSpec, GraphSpec, Manifest, TensorSpec
from vvs.runtime.bundle import Bundle
from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.tensorrt_package import TensorRT, load_tensorrt
from vvs.tree_shape import TreeShape

if TYPE_CHECKING:
    from vvs.export.tensorrt.builder import EngineOutcome

TREE = "small"
NODES, LONGEST = 9, 4  # of a tree of k 3, depth 2, 8 drafted nodes
ARCHES = ("sm_89", "sm_120")


def tensors(*specs: tuple[str, str, tuple[int | str, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(*spec) for spec in specs)


@pytest.fixture
def manifest() -> Manifest:
    """P 6, two layers of 2 x 16, capacity 48, vocabulary 96, 4 requests, CFG."""
    cache = ("B", 2, 48, 16)
    pasts = [(f"past_{kv}_{i}", "float16", cache) for i in range(2) for kv in "kv"]
    news = [(f"new_{kv}_{i}", "float16", ("B", 2, "T", 16)) for i in range(2) for kv in "kv"]
    graphs = {
        "encode_prompt": GraphSpec(
            "encode_prompt.onnx",
            tensors(("token_ids", "int64", ("R", 6))),
            tensors(("prompt_embeds", "float16", ("B", 6, 32))),
        ),
        "target": GraphSpec(
            "target.onnx",
            tensors(
                ("embeds", "float16", ("B", "T", 32)),
                ("positions", "int64", ("B", "T")),
                ("ancestors", "bool", ("B", "T", "T")),
                ("past_length", "int64", ("B",)),
                ("cfg_scale", "float32", ("R",)),
                *pasts,
            ),
            tensors(("logits", "float32", ("R", "T", 96)), ("features", "float16", ("B", "T", 32)), *news),
        ),
        f"draft_tree.{TREE}": GraphSpec(
            f"draft_tree.{TREE}.onnx",
            tensors(
                ("features", "float16", ("B", "A", 32)),
                ("root", "int64", ("R",)),
                ("past_length", "int64", ("B",)),
                ("past_k", "float16", cache),
                ("past_v", "float16", cache),
            ),
            tensors(("tree_tokens", "int64", ("R", NODES)), ("new_k", "float16", ("B", 2, "A", 16))),
        ),
        "decode_image": GraphSpec(
            "decode_image.onnx",
            tensors(("tokens", "int64", ("R", 36))),
            tensors(("image", "float32", ("R", 3, 12, 12))),
        ),
    }
    files = {spec.file: FileSpec(1, name[0] * 64) for name, spec in graphs.items()}
    return Manifest(
        name="hand-made",
        family="llamagen",
        precision="fp16",
        geometry=Geometry(6, 96, 8, 6, 2, 2, 16, 32, 2, 12),
        conditioning=ConditioningSpec("words", caption_dim=16),
        trees={TREE: TreeShape(3, 2, 8)},
        default_tree=TREE,
        max_requests=4,
        graphs=graphs,
        files=files | {"weights.bin": FileSpec(1, "0" * 64)},
        versions={},
        source="5" * 64,
    )


@pytest.fixture
def fake_package() -> TensorRT:
    return TensorRT("tensorrt-rtx", "tensorrt_rtx", "1.7.1.116", api=None)


@pytest.fixture
def records(manifest: Manifest, fake_package: TensorRT) -> dict[str, EngineRecord]:
    """Records as a build for sm_89 would write them, by graph."""
    made = {}
    for graph in manifest.graphs:
        profiles = profiles_of(manifest, graph, RequestRange(1, 1, 4))
        identity = identity_of(manifest, graph, "sm_89", fake_package, profiles, BuildFlags())
        command = "vvs build there --backend tensorrt-rtx --arch sm_89"
        contract = contract_of(manifest, graph)
        made[graph] = EngineRecord(identity, identity.digest, contract, 3, "c" * 64, 1.5, command)
    return made


@pytest.fixture(scope="session")
def rtx() -> TensorRT:
    pytest.importorskip("tensorrt_rtx_bindings", reason="builds for real, which needs TensorRT for RTX")
    pytest.importorskip("onnx_ir")
    return load_tensorrt("tensorrt-rtx")


@pytest.fixture
def no_driver() -> None:
    if find_driver() is not None:
        pytest.skip("says what happens without an NVIDIA driver, but this machine has one")


@dataclasses.dataclass(frozen=True)
class Built:
    """A bundle with engines beside it, and what the builder said of each."""

    bundle: Bundle
    outcomes: list[EngineOutcome]


@pytest.fixture(scope="session")
def built(rtx: TensorRT, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Every graph for one architecture, two of them for another. Not to be changed."""
    from vvs.export.tensorrt.builder import build_engines
    from vvs.export.tensorrt.settings import BuildSettings

    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("built") / "bundle"))
    bundle = Bundle.open(path)
    requests = RequestRange(1, 1, 2)
    first = BuildSettings("tensorrt-rtx", ARCHES[:1], requests=requests)
    second = BuildSettings("tensorrt-rtx", ARCHES[1:], ("encode_prompt", "target"), requests)
    return Built(bundle, [outcome for s in (first, second) for outcome in build_engines(bundle, s)])


@pytest.fixture
def own(built: Built, tmp_path: Path) -> Bundle:
    """A copy of the built bundle that a test may change, with the small graph's engines only."""
    path = tmp_path / "own"
    shutil.copytree(built.bundle.path, path, ignore=shutil.ignore_patterns("target.sm*", "d*.sm*"))
    return Bundle(path, built.bundle.manifest)
