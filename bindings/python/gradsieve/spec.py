# SPDX-License-Identifier: Apache-2.0
"""Spec strings: what they mean, what they cost, and what there is to choose from."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Union

from gradsieve import _abi
from gradsieve._library import library
from gradsieve.errors import check

#: One spec for all tensors, or (glob, spec) pairs: the first whose glob matches a name decides.
Rules = Union[str, Mapping[str, str], Sequence["tuple[str, str]"]]

DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f64": 3}
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
BACKENDS = ("default", "ref", "cpu", "cuda")
CLAIMS = (
    "deterministic",
    "lossless",
    "fixed_rate",
    "unbiased",
    "shared_indices",
    "elementwise",
    "f64",
    "aggregate_residual",
    "cuda",
)


_plugins: list[int] = []  # addresses of what codec.register added


class Context:
    """Backend, seed and threads that encoders and hooks start from."""

    def __init__(self, seed: int = 0, num_threads: int = 1, backend: str = "cpu") -> None:
        number = BACKENDS.index(backend)
        config = _abi.ContextConfig(backend=number, seed=seed, num_threads=num_threads)
        self.handle = _abi.Handle()
        check(library().gsvContextCreate(ctypes.byref(self.handle), ctypes.byref(config)))
        for plugin in _plugins:
            self.add_plugin(plugin)

    def add_plugin(self, address: int) -> None:
        length = ctypes.c_uint64()
        check(library().gsvContextAddPlugin(self.handle, address, None, 0, ctypes.byref(length)))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().gsvContextDestroy(self.handle)


@functools.cache
def default_context() -> Context:
    return Context()


def add_plugin(address: int) -> None:
    """Adds a plug-in in memory to this process: contexts made from here on know it."""
    Context().add_plugin(address)  # an error is an error of this one alone
    _plugins.append(address)
    default_context.cache_clear()


def read_text(function: Any, *before: Any, after: tuple[Any, ...] = ()) -> str:
    """Calls a function that answers (text, capacity, length)."""
    length = ctypes.c_uint64()
    check(function(*before, None, 0, ctypes.byref(length), *after))
    text = ctypes.create_string_buffer(length.value + 1)
    check(function(*before, text, len(text), ctypes.byref(length), *after))
    return text.value.decode()


def canonical(spec: str) -> str:
    """The spec with every default spelled out. SpecError says what would have been accepted."""
    context = default_context().handle
    return read_text(library().gsvSpecCanonical, spec.encode(), after=(context,))


@dataclasses.dataclass(frozen=True)
class SpecInfo:
    """What a spec costs and promises for one tensor."""

    claims: frozenset[str]
    contraction: float  #: 0: none promised
    num_rounds: int
    feedback: bool
    payload_bytes: int  #: all rounds, at most, headers included
    settled_bytes: int  #: of the last body, once density ramps are over
    state_bytes_merge: int  #: with rollback="merge": one residual
    state_bytes_exact: int  #: with rollback="exact": two residuals
    workspace_bytes: int
    dense_below_elements: int  #: smaller tensors are sent as they are


def info(spec: str, num_elements: int, dtype: str = "f32") -> SpecInfo:
    """Bytes and promises of `spec` for a tensor of `num_elements`."""
    answer = _abi.SpecInfo()
    check(
        library().gsvGetSpecInfo(
            spec.encode(),
            num_elements,
            dtype_number(dtype),
            ctypes.byref(answer),
            default_context().handle,
        )
    )
    numbers = {
        field.name: getattr(answer, field.name)
        for field in dataclasses.fields(SpecInfo)
        if field.name not in ("claims", "feedback")
    }
    claims = frozenset(name for bit, name in enumerate(CLAIMS) if answer.claims >> bit & 1)
    return SpecInfo(claims=claims, feedback=bool(answer.feedback), **numbers)


def plugins() -> list[dict[str, Any]]:
    """Every plug-in: name, kind, documentation, claims, parameters with unit, range, default."""
    text = read_text(library().gsvListPlugins, after=(default_context().handle,))
    return list(json.loads(text)["plugins"])


def dtype_number(dtype: str) -> int:
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


def rule_pairs(rules: Rules) -> list[tuple[str, str]]:
    """Rules in any accepted form as (glob, spec) pairs."""
    if isinstance(rules, str):
        return [("*", rules)]
    pairs = list(rules.items()) if isinstance(rules, Mapping) else [tuple(pair) for pair in rules]
    wrong = [pair for pair in pairs if len(pair) != 2 or not all(isinstance(x, str) for x in pair)]
    if not pairs or wrong:
        raise ValueError(
            f"rules are {rules!r}; expected a spec, or pairs of a glob and a spec such as "
            '[("*.bias", "none"), ("*", "topk(density=0.01)")]'
        )
    return [(match, spec) for match, spec in pairs]
