"""``python -m vvs.benchmarks.build_time``: what building TensorRT engines takes on this machine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vvs.benchmarks.child import run_vvs
from vvs.benchmarks.environment import bundle_identity, environment
from vvs.benchmarks.full_size import in_gb
from vvs.benchmarks.report import markdown, print_table, write_json, write_text
from vvs.errors import VvsError
from vvs.runtime.bundle import Bundle

ENGINE = ".engine"


def main(
    bundle: Annotated[Path, typer.Argument(help="Bundle to build.")],
    arch: Annotated[str, typer.Option(help="GPU architectures, such as sm_86,sm_89.")],
    graph: Annotated[
        list[str] | None, typer.Option(help="Build this graph only; repeat for more [all].")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.build.md and NAME.build.json.")] = Path(
        "out/full_size"
    ),
) -> None:
    """Build TensorRT-RTX engines ahead of time; record seconds, peak memory and sizes. Needs no GPU."""
    console = Console(width=None if Console().is_terminal else 200)
    try:
        _run(bundle, arch, graph or [], out, console)
    except VvsError as error:
        console.print(f"[red]error:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from error


def _run(place: Path, arch: str, graphs: list[str], out: Path, console: Console) -> None:
    manifest = Bundle.open(place, verify=False).manifest
    chosen = [word for graph in graphs for word in ("--graph", graph)]
    spent = run_vvs(["build", str(place), "--backend", "tensorrt-rtx", "--arch", arch, "--force", *chosen])
    engines = {file.name: file.stat().st_size for file in sorted(place.rglob(f"*{ENGINE}"))}
    where = environment()
    rows = [{"engine": name, "GB": in_gb(size)} for name, size in engines.items()]
    rows.append({"engine": "in all", "GB": in_gb(sum(engines.values()))})
    weights = "random weights of the published sizes" if manifest.random_parts else "weights that were given"
    machine = f"{where['processor']}, {where['threads']} threads"
    line = (
        f"{manifest.name} in {manifest.precision}, {weights}, for {arch}: {spent.seconds:.0f} s, at most "
        f"{in_gb(spent.peak_bytes)} GB of memory, on {machine}, no GPU."
    )
    print_table(rows, "Engines", console)
    console.print(line, soft_wrap=True, highlight=False)
    report = out / f"{manifest.name}.build"
    data = {
        "environment": where,
        "bundle": bundle_identity(manifest),
        "random_parts": list(manifest.random_parts),
        "arch": arch.split(","),
        "build": spent._asdict(),
        "engines": engines,
    }
    write_json(report.with_name(f"{report.name}.json"), data)
    write_text(report.with_name(f"{report.name}.md"), f"# TensorRT-RTX engines\n\n{line}\n\n{markdown(rows)}")


if __name__ == "__main__":
    typer.run(main)
