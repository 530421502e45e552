# SPDX-License-Identifier: Apache-2.0
"""What an installed wheel has to do. Arguments: the folder that it has to come from; "cuda"."""

import pathlib
import sys

import gradsieve
import gradsieve.numpy as gn
import numpy as np
from gradsieve._comm import Comm
from gradsieve._hook import Hook
from gradsieve._library import library

home = pathlib.Path(gradsieve.__file__).parent
assert pathlib.Path(library()._name) == home / "libgsv.so", library()._name
assert str(home).startswith(sys.argv[1]), home

gradient = np.arange(1000, dtype=np.float32) ** 2
rest = np.zeros(1000, np.float32)
spec = "topk(density=0.1) | int8 ; feedback=residual"
payload = gn.encode(gradient, spec, residual=rest)
assert len(payload) < 400
assert np.allclose(gn.decode(payload, spec, 1000) + rest, gradient)
assert (home / "py.typed").is_file()
# A wheel with the kernels for GPUs is as good as any other where there is no GPU.
try:
    Hook(Comm.local(1)[0], "int8", backend="cuda")
    found = "a device"
except gradsieve.GradsieveError as error:
    assert error.code in ("not_built", "device_error"), (error.code, error)
    found = error.code
assert found != "not_built" or "cuda" not in sys.argv[2:], "the wheel has no kernels for GPUs"
print(f"cuda: {found}", file=sys.stderr)
try:
    import gradsieve.torch  # noqa: F401

    print("with torch")
except ImportError as error:
    assert "needs PyTorch 2" in str(error), error
    print("without torch")
