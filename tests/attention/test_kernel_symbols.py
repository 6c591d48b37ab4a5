"""Files that are compiled for one instruction set share no function with the rest.

A weak symbol is one that the linker takes from any file: a function of the standard library that
was compiled for AVX-512 would then run on every machine.
"""

import subprocess
from pathlib import Path

import pytest

OBJECTS = Path(__file__).parents[2] / "build" / "package" / "CMakeFiles" / "onnx_light_objects.dir"


@pytest.mark.parametrize("folder", ["attention", "quant"])
def test_kernels_define_no_weak_symbols(folder: str) -> None:
    objects = sorted((OBJECTS / "src" / folder).glob("kernels_*.cc.o"))
    if not objects:
        pytest.skip("the package was not built in this tree")
    names = {"avx2", "avx512", "scalar"} | ({"avx512vnni"} if folder == "attention" else set())
    assert {path.name for path in objects} == {f"kernels_{name}.cc.o" for name in names}
    for path in objects:
        symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        kinds = {line.split()[-2] for line in symbols.splitlines()}
        assert not kinds & set("wWvVu"), path.name
