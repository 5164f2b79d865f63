"""Tuned: the settings that a bundle recommends for single devices, read and written.

The manifest is the only file that changes; graphs, arrays and their hashes stay as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vvs.manifest import MANIFEST_FILE
from vvs.runtime.bundle import Bundle, read_manifest
from vvs.runtime.cpus import processor, usable_cpus
from vvs.runtime.cuda_driver import find_driver
from vvs.runtime.whole_file import write_json

GPU_BACKENDS = ("cuda", "onnxruntime-cuda")


def device_name(backend: str) -> str:
    """Name the device that a backend computes on, as the keys of ``manifest.device_defaults`` do."""
    if backend in GPU_BACKENDS:
        driver = find_driver()
        gpus = driver.gpus if driver else ()
        return gpus[0].name if gpus else "no GPU"
    return f"{processor()}, {usable_cpus()} CPUs"


def on_device(bundle: Bundle, backend: str) -> Bundle:
    """Return the bundle as it recommends itself for a backend's device."""
    if not bundle.manifest.device_defaults:
        return bundle
    return replace(bundle, manifest=bundle.manifest.for_device(device_name(backend)))


def write_defaults(bundle: Bundle, device: str, settings: Mapping[str, Any]) -> None:
    """Write what is recommended for a device into the bundle's manifest, whole or not at all.

    Args:
        bundle: whose folder is written to; its manifest is read again.
        device: as :func:`device_name` names it; what was recommended for it before is replaced.
        settings: with the keys of ``manifest.defaults``, see :mod:`vvs.runtime.settings`.

    """
    manifest = read_manifest(bundle.path)
    changed = replace(manifest, device_defaults={**manifest.device_defaults, device: dict(settings)})
    write_json(bundle.path / MANIFEST_FILE, changed.to_dict(), indent=1)
