"""Engines of a bundle, as ``vvs inspect`` shows them. Needs neither a GPU nor TensorRT."""

from typing import TYPE_CHECKING, Any

import typer

from vvs.cli.output import print_table

if TYPE_CHECKING:
    from vvs.engine_record import EngineRecord
    from vvs.runtime.bundle import Bundle
    from vvs.runtime.engine_file import EngineState


def print_engines(bundle: "Bundle", *, verify: bool) -> None:
    """Print the engines beside a bundle; nothing where there are none."""
    from vvs.runtime.engine_file import survey

    states = survey(bundle, verify=verify)
    if states:
        print_table("Engines", ("engine", "bytes", "built by", "state"), map(_state, states))
        built = [(state, state.record) for state in states if state.record is not None]
        rows = [(state.path.stem, *_content(record)) for state, record in built]
        print_table("Built from", ("engine", "identity", "profiles", "flags"), rows)
    for state in states:
        if state.problem:
            typer.echo(f"refused: {state.problem}")


def engines_json(bundle: "Bundle", *, verify: bool) -> dict[str, Any]:
    """``{"engines": [...]}`` as plain JSON values; empty where there are none."""
    from vvs.runtime.engine_file import survey

    states = [
        {
            "file": state.path.name,
            "usable": not state.problem,
            "problem": state.problem,
            "record": state.record.to_dict() if state.record else None,
        }
        for state in survey(bundle, verify=verify)
    ]
    return {"engines": states} if states else {}


def _state(state: "EngineState") -> tuple[str, str, str, str]:
    identity = state.record.identity if state.record else None
    return (
        state.path.stem,
        f"{state.path.stat().st_size:,}",
        f"{identity.builder} {identity.version}" if identity else "-",
        "refused" if state.problem else "fits",
    )


def _content(record: "EngineRecord") -> tuple[str, str, str]:
    from vvs.export.tensorrt.identity import named_flags

    usual = named_flags()
    unusual = {name: value for name, value in record.identity.flags.items() if value != usual.get(name)}
    profiles = "\n".join(profile.use for profile in record.identity.profiles)
    return record.digest[:12], profiles, "\n".join(f"{k} {v}" for k, v in unusual.items()) or "the usual"
