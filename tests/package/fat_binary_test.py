#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Case C-79: every kernel is there for every architecture of the build, and as PTX of the newest.

fat_binary_test.py LIBRARY ARCHITECTURES (as in CMAKE_CUDA_ARCHITECTURES)
"""

import collections
import pathlib
import struct
import sys

MAGIC = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # a fat binary: magic, version, bytes of its header
PTX, MACHINE_CODE = 1, 2


def images(content):
    """Per fat binary, the (kind, architecture) of each image."""
    at = content.find(MAGIC)
    while at >= 0:
        (num_bytes,) = struct.unpack_from("<Q", content, at + 8)
        end = at + 16 + num_bytes
        position = at + 16
        found = []
        while position < end:
            kind, _, header_bytes, image_bytes = struct.unpack_from("<HHIQ", content, position)
            (architecture,) = struct.unpack_from("<I", content, position + 28)
            found.append((kind, architecture))
            position += header_bytes + image_bytes
        yield found
        at = content.find(MAGIC, end)


def wanted(architectures):
    for name in architectures.split(";"):
        number, _, kind = name.partition("-")
        if kind != "virtual":
            yield MACHINE_CODE, int(number)
        if kind != "real":
            yield PTX, int(number)


def main(library, architectures):
    expected = collections.Counter(wanted(architectures))
    count = 0
    for found in images(pathlib.Path(library).read_bytes()):
        if not found:
            continue
        count += 1
        if collections.Counter(found) != expected:
            sys.exit(f"a fat binary holds {sorted(found)}; expected {sorted(expected)}")
    newest = max(number for _, number in expected)
    if (PTX, newest) not in expected:
        sys.exit(f"{architectures} leaves out PTX of {newest}, the newest: later GPUs find nothing")
    if count == 0:
        sys.exit(f"{library} holds no fat binary")
    print(f"{count} fat binaries, each with {sorted(expected)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
