"""Builds rms_norm.so in this folder with torch.utils.cpp_extension: python setup.py build_ext --inplace."""

from __future__ import annotations

import os

import torch
from setuptools import setup
from torch.utils import cpp_extension

DEFINITIONS = [("TORCH_TARGET_VERSION", "0x020b000000000000")]  # runs with torch 2.11 and newer
FLAGS = ["-O3", "-std=c++20", "-fopenmp-simd"]
# cpp_extension needs a GPU or this variable to know which GPUs to build for.
GPUS = torch.cuda.is_available() or "TORCH_CUDA_ARCH_LIST" in os.environ

if torch.version.cuda and cpp_extension.CUDA_HOME and GPUS:
    extension = cpp_extension.CUDAExtension(
        "rms_norm",
        ["rms_norm.cpp", "rms_norm_cuda.cu"],
        define_macros=[*DEFINITIONS, ("USE_CUDA", None)],
        extra_compile_args={"cxx": FLAGS, "nvcc": ["-O3", "-std=c++20"]},
    )
else:
    extension = cpp_extension.CppExtension(
        "rms_norm", ["rms_norm.cpp"], define_macros=DEFINITIONS, extra_compile_args=FLAGS
    )

setup(
    name="rms_norm",
    ext_modules=[extension],
    # The library calls nothing of Python's, so the name of its file does not contain Python's version.
    cmdclass={"build_ext": cpp_extension.BuildExtension.with_options(no_python_abi_suffix=True)},
)
