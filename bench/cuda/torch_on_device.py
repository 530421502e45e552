# SPDX-License-Identifier: Apache-2.0
"""What PyTorch needs for the same work on the same GPU, for tools/gpu_check. The last line is JSON.

usage: torch_on_device.py [--elements N]
torch.topk of magnitudes, alone and with feedback. DDP with our hook: torch_ddp_on_device.py.
exit status: 0 measured, 77 not possible here (the last line says why)
"""

import argparse
import json
import statistics
import sys

ABSENT = 77
ROUNDS = 11
DENSITIES = (0.001, 0.01, 0.1)


def median_us(torch, restore, work, flush):
    """As gradsieve-gpu-bench: restored data, a cold cache, events on the stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(ROUNDS + 1):
        restore()
        flush.sum()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times[1:])


def topk(torch, num_elements):
    torch.manual_seed(0)
    gradient = torch.randn(num_elements, device="cuda")
    gradient *= torch.exp(2 * torch.randn(num_elements, device="cuda"))  # `heavy`
    saved = gradient.flip(0).contiguous()
    residual = saved.clone()
    flush = torch.zeros(64 << 20, dtype=torch.float32, device="cuda")
    found = {"torch": torch.__version__, "elements": num_elements}
    for density in DENSITIES:
        k = max(1, int(num_elements * density))
        magnitudes = residual.abs()

        def alone(magnitudes=magnitudes, k=k):
            torch.topk(magnitudes, k, sorted=False)

        def with_feedback(k=k):
            residual.add_(gradient)
            _, indices = torch.topk(residual.abs(), k, sorted=False)
            values = residual[indices]
            residual[indices] = 0
            return values

        with torch.cuda.stream(torch.cuda.Stream()):
            found[f"topk_{density}_us"] = median_us(torch, lambda: None, alone, flush)
            found[f"feedback_{density}_us"] = median_us(
                torch, lambda: residual.copy_(saved), with_feedback, flush)
    found["detail"] = (f"torch.topk 1 %: {found['topk_0.01_us']:.0f} us, "
                       f"with feedback {found['feedback_0.01_us']:.0f} us")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 27)
    given = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"no torch in {sys.executable}: {error}")
        return ABSENT
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU")
        return ABSENT
    try:
        found = topk(torch, given.elements)
    except Exception as error:  # whatever it is, there is no number
        reason = (str(error).splitlines() or [""])[0]
        print(f"torch.topk does not work here: {type(error).__name__}: {reason}")
        return ABSENT
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
