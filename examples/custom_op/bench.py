"""Time the operator against torch's own operators, in eager mode: python bench.py rms_norm.so [--device cuda].

Every figure is the median of one call, in microseconds; torch.utils.benchmark warns if the calls vary much.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.benchmark import Timer

ROWS = ((1, 768), (128, 768), (512, 768), (2048, 768), (128, 4096), (512, 4096))
CALLS = {
    "operator": "torch.ops.example.rms_norm(input, weight, 1e-6)",
    "composed": "composed_rms_norm(input, weight, 1e-6)",
    "F.rms_norm": "torch.nn.functional.rms_norm(input, weight.shape, weight, 1e-6)",
    "torch.compile": "compiled(input, weight, 1e-6)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="rms_norm.so, from CMake or setup.py")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    given = parser.parse_args()

    torch.ops.load_library(given.library)
    from model import composed_rms_norm  # registers the fake kernel, so the operator must exist

    print(f"torch {torch.__version__}, {given.device}, {given.threads} threads, float32, in us")
    print(f"{'input':>12}", *(f"{name:>14}" for name in CALLS), f"{'composed / operator':>20}")
    for shape in ROWS:
        input, weight = torch.randn(shape, device=given.device), torch.rand(shape[-1:], device=given.device)
        known = {"input": input, "weight": weight, "composed_rms_norm": composed_rms_norm}
        known["compiled"] = torch.compile(composed_rms_norm, dynamic=False)
        timers = {n: Timer(call, "import torch", globals=known, num_threads=given.threads) for n, call in CALLS.items()}
        with torch.inference_mode():
            times = {n: timer.blocked_autorange(min_run_time=given.seconds).median * 1e6 for n, timer in timers.items()}
        ratio = times["composed"] / times["operator"]
        print(f"{shape[0]:>7} x {shape[1]:4}", *(f"{time:>14.1f}" for time in times.values()), f"{ratio:>19.2f}x")


if __name__ == "__main__":
    main()
