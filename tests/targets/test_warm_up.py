"""What the packages of a machine share is made once, with a small package."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter import targets
from exporter.core import environment
from exporter.model.capture import Program
from exporter.targets import Exported, Options, _warm_up


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of the exports made by `build`, in an empty cache directory."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return []


def test_a_small_package_is_built_once_for_each_setting(exports: list[Options]) -> None:
    def build(program: Program, path: Path, options: Options) -> Exported:
        (output,) = program.artifact.module()(*program.example)
        assert output.shape == (2, 8)
        exports.append(options)
        return Exported()

    for _ in range(2):
        for options in (Options(threads=1), Options(threads=1, portable=True, precision="int8")):
            _warm_up.once(build, options)
    assert [(one.portable, one.precision) for one in exports] == [(False, "fp32"), (True, "fp32")]


def test_nothing_is_built_for_a_gpu_or_without_a_compiler(
    exports: list[Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(program: Program, path: Path, options: Options) -> Exported:
        raise AssertionError

    _warm_up.once(build, Options(threads=1, device="cuda"))
    monkeypatch.setattr(environment, "compiler", lambda: None)
    _warm_up.once(build, Options(threads=1))


def test_a_build_that_fails_is_tried_again(exports: list[Options]) -> None:
    def build(program: Program, path: Path, options: Options) -> Exported:
        exports.append(options)
        raise OSError(28, "No space left on device")

    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            _warm_up.once(build, Options(threads=1))
    assert len(exports) == 2


def test_only_packages_need_it() -> None:
    assert {name for name in targets.names() if targets.facts(name).warm_up is not None} == {"compile"}
