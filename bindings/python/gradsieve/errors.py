# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as exceptions."""

from __future__ import annotations

from gradsieve import _abi
from gradsieve._library import library


class GradsieveError(RuntimeError):
    """A failure that the library reports.

    `code` is its name ("peer_failed", "mismatch", ...), `rank` the rank it is about (None:
    unknown), `tensor` the first tensor concerned and `field` what differs or failed ("spec",
    "vote", ...), both "" where there is none.
    """

    def __init__(
        self, message: str, code: str, rank: int | None = None, tensor: str = "", field: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.rank = rank
        self.tensor = tensor
        self.field = field


class SpecError(GradsieveError, ValueError):
    """A spec, a name or a parameter that is not valid; the message says what would be."""


_SPEC_CODES = {"invalid_argument", "unknown_name"}


def code_name(result: int) -> str:
    return str(library().gsvGetResultName(result).decode())


def code_number(name: str) -> int:
    """What has this name; "internal" for what has none."""
    known = {code_name(number): number for number in range(_abi.INTERNAL + 1)}
    return known.get(name, _abi.INTERNAL)


def error_of(result: int) -> GradsieveError:
    """The exception for a result of the call that this thread made last."""
    code = code_name(result)
    message = library().gsvGetLastError().decode()
    kind = SpecError if code in _SPEC_CODES else GradsieveError
    return kind(message or f"the library answered {code}", code)


def check(result: int) -> None:
    """Raises unless the result is success."""
    if result != _abi.SUCCESS:
        raise error_of(result)
