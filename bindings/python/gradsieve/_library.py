# SPDX-License-Identifier: Apache-2.0
"""Finds libgsv.so and loads it once."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib

from gradsieve import _abi

NAME = "libgsv.so"


def candidates() -> list[str]:
    """Where the library may be, in the order of trying.

    GRADSIEVE_LIBRARY alone if it is set; else beside this package (a wheel), then the build tree
    that this package lies in, then wherever the loader looks.
    """
    named = os.environ.get("GRADSIEVE_LIBRARY")
    if named:
        return [named]
    package = pathlib.Path(__file__).resolve().parent
    found = [package / NAME]
    root = package.parents[2] if len(package.parents) > 2 else package
    if (root / "include" / "gradsieve" / "gradsieve.h").is_file():
        built = root.glob(f"build/*/bindings/c/{NAME}")
        found += sorted(built, key=lambda path: path.stat().st_mtime, reverse=True)
    return [str(path) for path in found if path.is_file()] + [f"{NAME}.0"]


def _load() -> ctypes.CDLL:
    errors = []
    for path in candidates():
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            errors.append(str(error))
    raise ImportError(
        f"gradsieve found no {NAME}; expected it in this package, in build/*/bindings/c of the "
        "source tree, on the loader's path, or in the variable GRADSIEVE_LIBRARY. "
        + "; ".join(errors)
    )


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library, its functions declared."""
    loaded = _load()
    try:
        _abi.declare(loaded)
    except AttributeError as error:
        raise ImportError(
            f"{loaded._name} is older than this package: {error}; expected the library "
            "that was built with it"
        ) from None
    return loaded
