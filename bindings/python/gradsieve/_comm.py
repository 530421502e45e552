# SPDX-License-Identifier: Apache-2.0
"""Communicators: the ranks that a hook exchanges with."""

from __future__ import annotations

import ctypes
from typing import Any

from gradsieve import _abi
from gradsieve._library import library
from gradsieve._transport import Table, Transport
from gradsieve.errors import check

NCCL_ID_BYTES = 128


def nccl_id() -> bytes:
    """An id that one rank makes and brings to the others."""
    made = ctypes.create_string_buffer(NCCL_ID_BYTES)
    check(library().gsvNcclGetUniqueId(made))
    return made.raw


class Comm:
    """A handle of the library, and what has to live as long as it."""

    def __init__(self, handle: _abi.Handle, keeps: Any = None) -> None:
        self.handle = handle
        self._keeps = keeps

    @classmethod
    def of_transport(cls, transport: Transport) -> Comm:
        """Ranks that a transport written in Python reaches."""
        table = Table(transport)
        handle = _abi.Handle()
        check(library().gsvCommInitTable(ctypes.byref(handle), ctypes.byref(table.struct)))
        return cls(handle, (table, transport))

    @classmethod
    def local(cls, world_size: int) -> list[Comm]:
        """Ranks that are threads of this process."""
        handles = (_abi.Handle * world_size)()
        check(library().gsvCommInitLocal(handles, world_size))
        return [cls(_abi.Handle(handle)) for handle in handles]

    @classmethod
    def of_mpi(cls, mpi_comm_address: int, module_path: str | None = None) -> Comm:
        """Ranks of an MPI_Comm, by the module libgsv_mpi.so. Collective."""
        handle = _abi.Handle()
        path = module_path.encode() if module_path is not None else None
        check(library().gsvCommInitMpi(ctypes.byref(handle), mpi_comm_address, path))
        return cls(handle)

    def nccl(self) -> Comm:
        """NCCL between the same ranks, each on the CUDA device that is current. Collective."""
        handle = _abi.Handle()
        check(library().gsvCommInitNcclOver(ctypes.byref(handle), self.handle))
        return Comm(handle, self)

    @classmethod
    def of_nccl_id(cls, world_size: int, nccl_id: bytes, rank: int) -> Comm:
        """NCCL between ranks that share nothing but an id. Collective."""
        handle = _abi.Handle()
        check(library().gsvCommInitNccl(ctypes.byref(handle), world_size, nccl_id, rank))
        return cls(handle)

    def limited(self, bits_per_second: float, latency: float = 0.0) -> Comm:
        """A slow network around this one: what an exchange costs where links are narrow."""
        handle = _abi.Handle()
        latency_ns = int(latency * 1e9)
        check(
            library().gsvCommInitLimited(
                ctypes.byref(handle), self.handle, bits_per_second, latency_ns
            )
        )
        return Comm(handle, self)

    @property
    def rank(self) -> int:
        rank = ctypes.c_int32()
        check(library().gsvCommUserRank(self.handle, ctypes.byref(rank)))
        return rank.value

    @property
    def world_size(self) -> int:
        size = ctypes.c_int32()
        check(library().gsvCommCount(self.handle, ctypes.byref(size)))
        return size.value

    def counters(self) -> tuple[int, int]:
        """Bytes and messages handed to the transport so far."""
        num_bytes, num_messages = ctypes.c_uint64(), ctypes.c_uint64()
        check(
            library().gsvCommCounters(
                self.handle, ctypes.byref(num_bytes), ctypes.byref(num_messages)
            )
        )
        return num_bytes.value, num_messages.value

    def abort(self) -> None:
        """Every wait of this rank, now and later, ends at once."""
        check(library().gsvCommAbort(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            library().gsvCommDestroy(self.handle)
