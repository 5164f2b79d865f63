from __future__ import annotations

import json

import pytest

from vvs.runtime import doctor, tensorrt_package


def test_this_machine_can_generate() -> None:
    report = doctor.examine()
    assert report.healthy
    subjects = {finding.subject for finding in report.findings}
    assert {"python", "package onnxruntime", "backend onnxruntime", "gpu", "engines tensorrt"} <= subjects
    json.dumps(report.to_dict())


def test_what_is_missing_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = doctor._Package("no-such-package", "drawing", "pip install no-such-package", required=True)
    monkeypatch.setattr(doctor, "_PACKAGES", (missing,))
    report = doctor.examine()
    assert not report.healthy
    (finding,) = (f for f in report.findings if f.subject == "package no-such-package")
    assert finding.advice == "for drawing: pip install no-such-package"


def test_a_broken_gpu_package_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(doctor, "import_module", broken)
    monkeypatch.setattr(tensorrt_package, "import_module", broken)
    findings = {f.subject: f for f in doctor.examine().findings}
    assert findings["module cuda.bindings"].found.startswith("broken: libnvinfer")
    for backend in tensorrt_package.BACKENDS:
        assert not findings[f"engines {backend}"].ok
        assert "libnvinfer" in findings[f"engines {backend}"].advice
