# SPDX-License-Identifier: Apache-2.0
"""One rank that trains, for tests that look at whole runs. Arguments: steps, then key=value:

spec=…       "" trains without our hook
out=FOLDER   where rankR.json goes: the error that was raised, a hash of the weights
die=R        rank R kills itself in its sixth backward pass
stop=R       rank R stops itself there and never goes on
exchange=1   gt.Exchange in place of DDP and the hook
timeout=S    seconds, of the exchange
link=BITS    bits per second of a slow network to imitate
width=N      of the hidden layers
keep=FOLDER  where rankR.pt goes at the end: model, optimizer and state
from=FOLDER  goes on with what another run has kept there
exit=WAY     not as our guide says: "destroy" as PyTorch's tutorials do, "bare" with nothing
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import signal
import sys
import time

import gradsieve
import gradsieve.torch as gt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_models import batch, digest

DIES_AT = 5


def model_of(width: int) -> nn.Sequential:
    torch.manual_seed(7)
    layers: list[nn.Module] = [nn.Linear(31, width), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 5))


def main() -> None:
    steps = int(sys.argv[1])
    options = dict(argument.split("=", 1) for argument in sys.argv[2:])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()
    model = model_of(int(options.get("width", "33")))
    ddp, exchange, state = model, None, None
    timeout = float(options.get("timeout", "20"))
    if "exchange" in options:
        exchange = gt.Exchange(model.named_parameters(), options["spec"], timeout=timeout)
        state = exchange
    else:
        cap = float(options.get("bucket_mb", "0.008"))
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
    if options.get("spec") and exchange is None:
        link = (float(options["link"]), 0.0) if "link" in options else None
        named = model.named_parameters()
        state = gt.HookState(options["spec"], None, named, timeout=timeout, link=link)
        ddp.register_comm_hook(state, gt.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    kept = {"model": model, "optimizer": optimizer, "gradsieve": state}
    first = 0
    if "from" in options:
        saved = torch.load(pathlib.Path(options["from"]) / f"rank{rank}.pt", weights_only=True)
        for name, part in kept.items():
            part.load_state_dict(saved[name])
        first = state.step
    result = {"error": "", "kind": "", "seconds": 0.0}
    begun = time.monotonic()
    try:
        for step in range(first, steps):
            x, y = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp(x), y)
            for way, number in (("die", signal.SIGKILL), ("stop", signal.SIGSTOP)):
                if options.get(way) == str(rank) and step == DIES_AT:
                    model[2].weight.register_hook(lambda _, n=number: os.kill(os.getpid(), n))
            begun = time.monotonic()
            loss.backward()
            if exchange is not None:
                exchange.reduce()
            optimizer.step()
    except RuntimeError as error:
        result["error"] = str(error)
        result["kind"] = type(error).__name__
    if "keep" in options:
        states = {name: part.state_dict() for name, part in kept.items()}
        torch.save(states, pathlib.Path(options["keep"]) / f"rank{rank}.pt")
    result["seconds"] = time.monotonic() - begun
    result["weights"] = digest(model.parameters())
    result["version"] = gradsieve.__version__
    if "out" in options:
        (pathlib.Path(options["out"]) / f"rank{rank}.json").write_text(json.dumps(result))
    if "exit" in options:
        if options["exit"] == "destroy":
            dist.destroy_process_group()
        return
    if not result["error"]:
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
