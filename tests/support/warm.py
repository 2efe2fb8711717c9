"""When imported, does what most jobs would do first, so that forked jobs need not.

It fills torch.onnx's registry, and lets inductor find the CPU's vector instructions.
"""

from __future__ import annotations

import contextlib

from torch._inductor import cpu_vec_isa

from exporter.targets import _inductor, onnx

onnx.preload_translations()
with contextlib.suppress(Exception):  # there is no compiler
    _inductor.find_vector_instructions()
    cpu_vec_isa.valid_vec_isa_list()
