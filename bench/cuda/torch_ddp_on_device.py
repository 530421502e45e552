# SPDX-License-Identifier: Apache-2.0
"""DDP with our hook on a GPU at world size 1, for tools/gpu_check. The last line is JSON.

usage: torch_ddp_on_device.py [--device cuda|cpu]
It compares before it times: `none` with DDP without a hook, and a compressed exchange with the one
of the CPU, both bit for bit. Over NCCL where the library has it, else over gloo and pinned memory.
exit status: 0 measured, 1 wrong result, 77 not possible here (the last line says why)
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

WRONG, ABSENT = 1, 77
SPEC = "topk(density=0.01) | int8 ; feedback=residual"
STEPS = 20
UNTIMED = 5  # DDP settles on its buckets, NCCL connects


def model_on(torch, device, width):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(1024, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)]
    return torch.nn.Sequential(*layers).to(device)


class Run:
    """A model in DDP, with our hook unless `spec` is None."""

    def __init__(self, torch, device, width, spec):
        from torch.nn.parallel import DistributedDataParallel

        self.torch, self.device = torch, device
        self.model = model_on(torch, device, width)
        self.ddp = DistributedDataParallel(self.model)
        self.state = None
        if spec is not None:
            import gradsieve.torch as gt

            self.state = gt.HookState([("*", spec)], None, self.model.named_parameters())
            self.ddp.register_comm_hook(self.state, gt.hook)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01)

    def step(self, number):
        generator = self.torch.Generator().manual_seed(number)
        x = self.torch.randn(256, 1024, generator=generator).to(self.device)
        self.optimizer.zero_grad()
        self.ddp(x).square().mean().backward()
        self.optimizer.step()

    def weights(self):
        return self.torch.cat([p.detach().reshape(-1).cpu() for p in self.model.parameters()])


def step_ms(torch, run):
    """Wall time of a step with everything that it has left on the device: the median."""
    times = []
    for number in range(STEPS):
        begun = time.perf_counter()
        run.step(number)
        if run.device == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times[UNTIMED:])


def same_as_without_hook(torch, device, width):
    runs = [Run(torch, device, width, spec) for spec in (None, "none")]
    for run in runs:
        for number in range(4):
            run.step(number)
    return torch.equal(runs[0].weights(), runs[1].weights())


def same_as_on_the_cpu(torch, device):
    """Six steps of given gradients: results and residuals."""
    import gradsieve.torch as gt

    results = []
    for place in ("cpu", device):
        weight = torch.nn.Parameter(torch.zeros(70001, device=place))
        exchange = gt.Exchange([("w", weight)], SPEC)
        for number in range(6):
            generator = torch.Generator().manual_seed(number)
            weight.grad = torch.randn(70001, generator=generator).pow(3).to(place)
            exchange.reduce()
            results.append((place, weight.grad.cpu().clone()))
        results.append((place, exchange.residual("w")))
    half = len(results) // 2
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(results[:half], results[half:]))


def measured(torch, backend, device):
    import torch.distributed as dist

    scratch = tempfile.mkdtemp()
    store = f"file://{pathlib.Path(scratch) / 'store'}"
    dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
    width = 4096 if device == "cuda" else 64
    try:
        wrong = []
        if not same_as_without_hook(torch, device, width):
            wrong.append("`none` is not what DDP does without a hook")
        if not same_as_on_the_cpu(torch, device):
            wrong.append("a compressed exchange has not the bits of the CPU")
        with_hook = step_ms(torch, Run(torch, device, width, SPEC))
        without = step_ms(torch, Run(torch, device, width, None))
    finally:
        dist.destroy_process_group()
    detail = f"a step of DDP: {with_hook:.2f} ms with our hook, {without:.2f} ms without; {backend}"
    return {"spec": SPEC, "backend": backend, "device": device, "step_ms": with_hook,
            "step_without_hook_ms": without, "wrong": wrong,
            "detail": "; ".join([*wrong, detail])}


def backends_of(device):
    return ("cpu:gloo,cuda:nccl", "gloo") if device == "cuda" else ("gloo",)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    try:
        import gradsieve
        import torch
    except ImportError as error:
        print(f"{sys.executable}: {str(error).splitlines()[0]}")
        return ABSENT
    if device == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU")
        return ABSENT
    reasons = []
    for backend in backends_of(device):
        try:
            found = measured(torch, backend, device)
        except gradsieve.GradsieveError as error:
            reasons.append(f"{backend}: {error}")
            if error.code in ("not_built", "unsupported"):
                continue
            print(f"{backend}: {error.code}: {error}")
            return WRONG
        except Exception as error:  # torch's own trouble is not ours
            reasons.append(f"{backend}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        print(json.dumps({**found, "torch": torch.__version__, "tried_before": reasons}))
        return WRONG if found["wrong"] else 0
    print("; ".join(reasons))
    return ABSENT


if __name__ == "__main__":
    sys.exit(main())
