"""``vvs inspect``: what is in a bundle."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vvs.cli.engines import engines_json, print_engines
from vvs.cli.output import print_table, write_json

if TYPE_CHECKING:
    from vvs.manifest import GraphSpec, Manifest, TensorSpec

TENSORS_SHOWN = 8


def inspect(
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
    verify: Annotated[bool, typer.Option(help="Check the hash of every file.")] = True,
) -> None:
    """Check a bundle and show what is in it."""
    from vvs.runtime.bundle import Bundle

    opened = Bundle.open(bundle, verify=verify)
    manifest = opened.manifest
    if as_json:
        write_json(manifest.to_dict() | engines_json(opened, verify=verify))
        return
    print_table(f"{manifest.name} ({opened.path})", ("model", ""), _model(manifest))
    trees = [
        (
            f"{name} (default)" if name == manifest.default_tree else name,
            t.k,
            t.depth,
            t.total,
            "coupled" if t.coupled else "-",
        )
        for name, t in manifest.trees.items()
    ]
    print_table("Draft trees", ("name", "k", "depth", "drafted nodes", "noise"), trees)
    graphs = [row for name, graph in manifest.graphs.items() for row in _graph(name, graph)]
    print_table("Graphs", ("graph", "inputs", "outputs", "worst error"), graphs)
    files = [(name, f"{spec.bytes:,}", spec.sha256[:16]) for name, spec in manifest.files.items()]
    print_table("Files", ("file", "bytes", "sha256"), files)
    print_table("Built with", ("package", "version"), manifest.versions.items())
    print_engines(opened, verify=verify)


def _model(manifest: "Manifest") -> Iterable[tuple[object, object]]:
    prompt = manifest.conditioning
    names = f", named as in {prompt.class_names}" if prompt.class_names else ""
    wide = f", {prompt.caption_dim} wide"
    sizes = {"class": f", {prompt.classes} classes{names}", "caption": wide, "t5": wide}
    yield "family", manifest.family
    kept = f", in fp32: {', '.join(manifest.kept_fp32)}" if manifest.kept_fp32 else ""
    yield "precision", manifest.precision + kept
    yield "prompted with", prompt.kind + sizes.get(prompt.kind, "")
    yield from asdict(manifest.geometry).items()
    yield "requests at once", manifest.max_requests
    yield "source", manifest.source
    yield "random weights", ", ".join(manifest.random_parts) or "none"
    yield "settings", ", ".join(f"{key} {value}" for key, value in manifest.defaults.items()) or "-"
    yield "examples", "\n".join(manifest.examples) or "-"


def _graph(name: str, graph: "GraphSpec") -> Iterable[tuple[str, str, str, str]]:
    worst = max((report.absolute for report in graph.parity), default=None)
    yield (
        name,
        _tensors(graph.inputs),
        _tensors(graph.outputs),
        "not compared" if worst is None else f"{worst:.1e}",
    )


def _tensors(tensors: "tuple[TensorSpec, ...]") -> str:
    lines = [f"{t.name} {t.dtype} [{', '.join(map(str, t.shape))}]" for t in tensors[:TENSORS_SHOWN]]
    rest = len(tensors) - TENSORS_SHOWN
    return "\n".join([*lines, f"... and {rest} more"] if rest > 0 else lines)
