# SPDX-License-Identifier: Apache-2.0
"""A transport written in Python, and how the library sees it."""

from __future__ import annotations

import abc
import ctypes
import itertools
from typing import Any

from gradsieve import _abi
from gradsieve.errors import GradsieveError

DATA = 0
CONTROL = 1


class TransportError(Exception):
    """Raised by a Transport: the message goes to the library, `result` is what it reads."""

    def __init__(self, message: str, result: int = _abi.TRANSPORT_ERROR) -> None:
        super().__init__(message)
        self.result = result


class Transport(abc.ABC):
    """Moves bytes between ranks for the library: what a framework's own network is wrapped in.

    `address` and `num_bytes` describe memory of the library, which stays put until `wait` has
    returned for the operation, and is not touched afterwards. Between two ranks, messages of one
    channel and tag arrive in the order sent.
    """

    name = "python"
    #: A thread of the library may call it beside the caller's.
    any_thread = True

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    @abc.abstractmethod
    def send(self, channel: int, peer: int, tag: int, address: int, num_bytes: int) -> Any:
        """Starts sending; returns the operation."""

    @abc.abstractmethod
    def receive(self, channel: int, peer: int, tag: int, address: int, capacity: int) -> Any:
        """Starts receiving at most `capacity` bytes; returns the operation."""

    @abc.abstractmethod
    def wait(self, operation: Any, timeout: float) -> int:
        """Waits at most `timeout` seconds; the number of bytes sent or received.

        Raises TransportError with result TIMEOUT, or TimeoutError, after which the operation is
        cancelled.
        """

    @abc.abstractmethod
    def abort(self) -> None:
        """Every wait, now and later, ends in TransportError with result ABORTED."""

    def dense_all_reduce(self, address: int, num_elements: int, dtype: int) -> None:
        """The network's own dense sum, in place."""
        raise TransportError("this transport has no dense sum of its own", _abi.UNSUPPORTED)


class Table:
    """A Transport as the C functions that the library calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._operations: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        # The library keeps a pointer to a message for as long as the transport lives.
        self._messages: dict[bytes, ctypes.c_char_p] = {}
        self.struct = _abi.TransportTable(
            flags=1 if transport.any_thread else 0,
            name=transport.name.encode(),
            rank=transport.rank,
            world_size=transport.world_size,
            send=_abi.SendFunction(self._send),
            receive=_abi.ReceiveFunction(self._receive),
            wait=_abi.WaitFunction(self._wait),
            abort=_abi.AbortFunction(self._abort),
            dense_all_reduce=_abi.DenseAllReduceFunction(self._dense_all_reduce),
        )

    def _fail(self, error: BaseException, request: Any) -> int:
        if request is not None:
            text = (str(error) or type(error).__name__).encode()
            kept = self._messages.setdefault(text, ctypes.c_char_p(text))
            request.contents.message = kept
        if isinstance(error, TransportError):
            return error.result
        return _abi.TIMEOUT if isinstance(error, TimeoutError) else _abi.TRANSPORT_ERROR

    def _start(
        self, start: Any, channel: int, peer: int, tag: int, at: Any, size: int, request: Any
    ) -> int:
        try:
            operation = start(channel, peer, tag, at or 0, size)
        except BaseException as error:  # nothing may unwind into C
            return self._fail(error, request)
        number = next(self._numbers)
        self._operations[number] = operation
        request.contents.storage[0] = number
        return _abi.SUCCESS

    def _send(
        self, _: Any, channel: int, peer: int, tag: int, at: Any, size: int, request: Any
    ) -> int:
        return self._start(self._transport.send, channel, peer, tag, at, size, request)

    def _receive(
        self, _: Any, channel: int, peer: int, tag: int, at: Any, size: int, request: Any
    ) -> int:
        return self._start(self._transport.receive, channel, peer, tag, at, size, request)

    def _wait(self, _: Any, request: Any, timeout_ns: int) -> int:
        try:
            operation = self._operations.pop(request.contents.storage[0])
            request.contents.num_bytes = self._transport.wait(operation, timeout_ns * 1e-9)
        except BaseException as error:  # nothing may unwind into C
            return self._fail(error, request)
        return _abi.SUCCESS

    def _abort(self, _: Any) -> None:
        try:
            self._transport.abort()
        except Exception:  # the library has marked the transport as aborted already
            pass

    def _dense_all_reduce(self, _: Any, at: Any, num_elements: int, dtype: int) -> int:
        try:
            self._transport.dense_all_reduce(at or 0, num_elements, dtype)
        except BaseException as error:  # nothing may unwind into C
            return self._fail(error, None)
        return _abi.SUCCESS


__all__ = ["CONTROL", "DATA", "GradsieveError", "Table", "Transport", "TransportError"]
