# SPDX-License-Identifier: Apache-2.0
"""Codecs written in Python: for research, not for speed.

    class Halves(Codec):
        name = "halves"
        summary = "Sends every element as an IEEE half, saturated"

        def capacity_bytes(self, num_elements):
            return 2 * num_elements

        def encode(self, gradient, call):
            return np.clip(gradient, -65504, 65504).astype(np.float16).tobytes()

        def decode_add(self, body, weight, accumulator):
            accumulator += weight * np.frombuffer(body, np.float16).astype(np.float32)

    register(Halves())    # from here on "halves ; feedback=residual" is a spec

All ranks register the same codecs. What a codec is called with is valid during the call only.
"""

from __future__ import annotations

import abc
import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradsieve import _abi, spec
from gradsieve import _plugin_abi as abi

CORRUPT_PAYLOAD = 30


class CallInfo(NamedTuple):
    """What random numbers may depend on, and nothing else: then ranks and runs can be repeated."""

    seed: int
    step: int
    rank: int
    tensor_id: int
    offset_elements: int  #: of the piece within its tensor
    owned: bool  #: the owner's second encoding in a two-shot


class Codec(abc.ABC):
    """A compressor. Feedback, exchange, checkpoints and rollback are the library's."""

    name: str  #: as in a spec: lower case
    summary: str  #: one sentence
    paper = "-"
    payload_id = 255  #: 160 ... 255, another one for each codec of a program
    #: "gather": own bytes to all; "two_shot": the owner of a shard adds and encodes once more.
    exchange = "gather"
    #: Of "deterministic", "lossless", "fixed_rate", "unbiased", "elementwise".
    claims: frozenset[str] = frozenset({"deterministic"})
    contraction = 0.0  #: 0 promises nothing
    block_elements = 1  #: shards are cut at multiples of it

    @abc.abstractmethod
    def capacity_bytes(self, num_elements: int) -> int:
        """Most bytes that encode returns."""

    @abc.abstractmethod
    def encode(self, gradient: NDArray[np.float32], call: CallInfo) -> bytes:
        """`gradient` as bytes; not to be changed."""

    @abc.abstractmethod
    def decode_add(self, body: memoryview, weight: float, accumulator: NDArray[np.float32]) -> None:
        """accumulator += weight · what `body` says. Raises ValueError for what no encode wrote."""


class _Table:
    """A codec as the C functions that the library calls. It lives as long as the process."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.error: BaseException | None = None
        self.struct = abi.PluginV1x(
            abi_version=abi.ABI_VERSION,
            struct_size=ctypes.sizeof(abi.PluginV1x),
            payload_id=codec.payload_id,
            name=codec.name.encode(),
            summary=f"{codec.summary} (in Python: slow)".encode(),
            paper=codec.paper.encode(),
            create=abi.CreateFunction(self._create),
            destroy=abi.DestroyFunction(lambda _: None),
            describe=abi.DescribeFunction(self._describe),
            round_info=abi.RoundInfoFunction(self._round_info),
            encode=abi.EncodeFunction(self._encode),
            decode_add=abi.DecodeAddFunction(self._decode_add),
        )

    def _create(self, _values: Any, _count: int, _feedback: int, codec: Any) -> int:
        codec[0] = 1  # any address: the codec is known here
        return _abi.SUCCESS

    def _describe(self, _: Any, info: Any) -> None:
        info.contents.claims = sum(1 << spec.CLAIMS.index(name) for name in self.codec.claims)
        info.contents.contraction = self.codec.contraction
        info.contents.num_rounds = 1
        info.contents.block_elements = self.codec.block_elements

    def _round_info(self, _: Any, _round: int, piece: Any, info: Any) -> None:
        info.contents.exchange = abi.EXCHANGES[self.codec.exchange]
        info.contents.capacity_bytes = self.codec.capacity_bytes(piece.contents.num_elements)

    def _encode(self, _: Any, call: Any, piece: Any, corrected: Any, body: Any) -> int:
        try:
            gradient = _floats(corrected, piece.contents.num_elements)
            gradient.flags.writeable = False
            encoded = self.codec.encode(gradient, _info(call.contents, piece.contents))
            if len(encoded) > body.contents.capacity_bytes:
                return _abi.CAPACITY_EXCEEDED
            ctypes.memmove(body.contents.data, encoded, len(encoded))
            body.contents.num_bytes[0] = len(encoded)
        except Exception as error:  # nothing may unwind into C
            self.error = error
            return _abi.INVALID_ARGUMENT
        return _abi.SUCCESS

    def _decode_add(
        self, _: Any, _call: Any, piece: Any, data: Any, num_bytes: int, weight: float, at: Any
    ) -> int:
        try:
            body = memoryview(
                (ctypes.c_char * num_bytes).from_address(data or 0) if num_bytes else b""
            )
            accumulator = _floats(at, piece.contents.num_elements)
            self.codec.decode_add(body.cast("B"), weight, accumulator)
        except Exception as error:  # nothing may unwind into C
            self.error = error
            return CORRUPT_PAYLOAD
        return _abi.SUCCESS


def _floats(address: Any, count: int) -> NDArray[np.float32]:
    if count == 0:
        return np.empty(0, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def _info(call: abi.Call, piece: abi.Piece) -> CallInfo:
    return CallInfo(
        call.seed,
        call.words.contents.step,
        call.rank,
        piece.tensor_id,
        piece.offset_elements,
        bool(call.owned),
    )


_tables: dict[str, _Table] = {}


def register(codec: Codec) -> None:
    """Adds a codec to the specs of this process, for what is made from here on."""
    if codec.exchange not in abi.EXCHANGES:
        names = ", ".join(abi.EXCHANGES)
        raise ValueError(f"exchange is {codec.exchange!r}; expected one of {names}")
    unknown = set(codec.claims) - set(spec.CLAIMS)
    if unknown:
        raise ValueError(
            f"claims has {', '.join(sorted(unknown))}; expected some of {', '.join(spec.CLAIMS)}"
        )
    table = _Table(codec)
    spec.add_plugin(ctypes.addressof(table.struct))
    _tables[codec.name] = table


def last_error(name: str) -> BaseException | None:
    """What a codec raised last: the library only says that it failed."""
    return _tables[name].error
