# SPDX-License-Identifier: Apache-2.0
"""An mpi4py communicator as a transport, where libgsv_mpi.so is missing or of another MPI."""

from __future__ import annotations

import ctypes
import os
import pathlib
import time
from typing import Any, NamedTuple

from mpi4py import MPI

from gradsieve import _abi
from gradsieve._comm import Comm
from gradsieve._library import library
from gradsieve._transport import Transport, TransportError
from gradsieve.errors import GradsieveError

_MODULE = "libgsv_mpi.so"
_SLEEP_SECONDS = 50e-6
_SPINS = 200
_DENSE_TYPES = {0: MPI.FLOAT, 3: MPI.DOUBLE}


class _Operation(NamedTuple):
    request: MPI.Request
    num_bytes: int
    is_send: bool


class MpiTransport(Transport):
    """Point-to-point messages of two duplicates of a communicator: one for each channel."""

    name = "mpi4py"

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__(comm.Get_rank(), comm.Get_size())
        self.any_thread = MPI.Query_thread() >= MPI.THREAD_MULTIPLE
        self._comms = (comm.Dup(), comm.Dup())
        self._tag_bound = int(comm.Get_attr(MPI.TAG_UB) or 32767)
        self._aborted = False

    def _place(self, channel: int, tag: int) -> tuple[MPI.Comm, int]:
        if self._aborted:
            raise TransportError("this rank has aborted", _abi.ABORTED)
        if tag > self._tag_bound:
            raise TransportError(f"tag {tag} is beyond what this MPI allows ({self._tag_bound})")
        return self._comms[channel], tag

    def send(self, channel: int, peer: int, tag: int, address: int, num_bytes: int) -> _Operation:
        comm, number = self._place(channel, tag)
        return _Operation(comm.Isend(_bytes(address, num_bytes), peer, number), num_bytes, True)

    def receive(self, channel: int, peer: int, tag: int, address: int, capacity: int) -> _Operation:
        comm, number = self._place(channel, tag)
        return _Operation(comm.Irecv(_bytes(address, capacity), peer, number), capacity, False)

    def wait(self, operation: _Operation, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        status = MPI.Status()
        spins = 0
        try:
            while not operation.request.Test(status):
                if self._aborted:
                    self._cancel(operation)
                    raise TransportError("this rank has aborted", _abi.ABORTED)
                if time.monotonic() >= deadline:
                    self._cancel(operation)
                    raise TimeoutError("a message did not arrive by its deadline")
                spins += 1
                time.sleep(_SLEEP_SECONDS if spins > _SPINS else 0.0)
        except MPI.Exception as error:
            longer = error.Get_error_class() == MPI.ERR_TRUNCATE
            raise TransportError(
                str(error), _abi.CAPACITY_EXCEEDED if longer else _abi.TRANSPORT_ERROR
            ) from None
        return operation.num_bytes if operation.is_send else status.Get_count(MPI.BYTE)

    def _cancel(self, operation: _Operation) -> None:
        operation.request.Cancel()
        # A receive is cancelled at once or has just ended; a send may never be, and is let go.
        if operation.is_send:
            operation.request.Free()
        else:
            operation.request.Wait()

    def abort(self) -> None:
        self._aborted = True

    def dense_all_reduce(self, address: int, num_elements: int, dtype: int) -> None:
        if dtype not in _DENSE_TYPES:
            return super().dense_all_reduce(address, num_elements, dtype)
        kind = _DENSE_TYPES[dtype]
        memory = _bytes(address, num_elements * kind.Get_size())
        self._comms[0].Allreduce(MPI.IN_PLACE, [memory, num_elements, kind])
        return None


def _bytes(address: int, num_bytes: int) -> Any:
    if num_bytes == 0:
        return [b"", 0, MPI.BYTE]
    return [(ctypes.c_char * num_bytes).from_address(address), num_bytes, MPI.BYTE]


def _module_path() -> str | None:
    """libgsv_mpi.so: as GRADSIEVE_MPI_MODULE says, beside libgsv.so, or in the same build tree."""
    named = os.environ.get("GRADSIEVE_MPI_MODULE")
    if named:
        return named
    folder = pathlib.Path(library()._name).resolve().parent
    for path in (folder / _MODULE, folder.parents[1] / "comm" / "mpi" / _MODULE):
        if path.is_file():
            return str(path)
    return None


def comm_of(comm: MPI.Comm) -> Comm:
    """The library's own MPI module if every rank has it and it fits, else mpi4py's messages."""
    path = _module_path()
    module: Comm | None = None
    if comm.allreduce(path is not None, op=MPI.LAND):
        try:
            module = Comm.of_mpi(MPI._addressof(comm), path)
        except GradsieveError:  # another MPI than mpi4py's: it is not initialised
            module = None
    if comm.allreduce(module is not None, op=MPI.LAND):
        assert module is not None
        return module
    return Comm.of_transport(MpiTransport(comm))
