# SPDX-License-Identifier: Apache-2.0
"""Numbers as the library has them, from their definitions: f32 rounding, Philox4x32-10, XXH64.

A sum, product or quotient of two f32 numbers, computed in double and rounded once to f32, is the
f32 result: a double has more than 2·24 + 1 bits, so the second rounding never changes the first.
"""
import math
import struct

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


def f32(x):
    """The f32 nearest to x, ties to even."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def f32_from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def next_up(x):
    """The next larger f32 of a number that is not negative."""
    return f32_from_bits(f32_bits(x) + 1)


def bf16_bits(x):
    """To nearest, ties to even; x is a finite f32 below the largest bf16."""
    bits = f32_bits(x)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def f16_bits(x):
    """To nearest, ties to even, saturated at the largest half."""
    try:
        return struct.unpack("<H", struct.pack("<e", x))[0]
    except OverflowError:
        return 0x7BFF if x > 0 else 0xFBFF


def f16_value(bits):
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def rint(x):
    """To the nearest whole number, ties to even: what round() does."""
    return int(round(x))


def sum_lanes(values):
    """Σ in double: eight interleaved lanes within blocks of 4096, lanes pairwise, blocks in order."""
    total = 0.0
    for begin in range(0, len(values), 4096):
        lanes = [0.0] * 8
        for i, value in enumerate(values[begin:begin + 4096]):
            lanes[i % 8] += value
        total += ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + \
                 ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))
    return total


def philox(key, counter, rounds=10):
    """Philox4x32-10 of Salmon et al., SC 2011: key is two words, counter four."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        p0 = 0xD2511F53 * c0
        p1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0 = (k0 + 0x9E3779B9) & MASK32
        k1 = (k1 + 0xBB67AE85) & MASK32
    return [c0, c1, c2, c3]


def mix64(x):
    """Finaliser of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


QUANTIZE, QUANTIZE_OWNED, RESIDUAL, SELECT = 1, 2, 3, 4
SHARED_DRAW = MASK32


def philox_key(seed, tensor, purpose, rank):
    key = mix64(mix64(mix64(seed) ^ tensor) ^ ((purpose << 32) | rank))
    return key & MASK32, key >> 32


def philox_at(key, block, step):
    return philox(key, (block & MASK32, block >> 32, step & MASK32, step >> 32))


def rounding_bits(key, step, element):
    """16 bits of an element, counted in its whole tensor."""
    word = philox_at(key, element // 8, step)[(element % 8) // 2]
    return word >> 16 if element % 2 else word & 0xFFFF


def rounding_uniform(key, step, element):
    return (rounding_bits(key, step, element) + 0.5) / 65536.0


def tensor_id(name):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                      0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def _rotate(x, r):
    return ((x << r) | (x >> (64 - r))) & MASK64


def _round(acc, lane):
    return (_rotate((acc + lane * P2) & MASK64, 31) * P1) & MASK64


def xxh64(data):
    """XXH64 with seed 0, from the specification of xxHash."""
    at = 0
    if len(data) >= 32:
        accs = [(P1 + P2) & MASK64, P2, 0, (-P1) & MASK64]
        while at + 32 <= len(data):
            lanes = struct.unpack_from("<4Q", data, at)
            accs = [_round(acc, lane) for acc, lane in zip(accs, lanes)]
            at += 32
        h = sum(_rotate(acc, r) for acc, r in zip(accs, (1, 7, 12, 18))) & MASK64
        for acc in accs:
            h = ((h ^ _round(0, acc)) * P1 + P4) & MASK64
    else:
        h = P5
    h = (h + len(data)) & MASK64
    while at + 8 <= len(data):
        h ^= _round(0, struct.unpack_from("<Q", data, at)[0])
        h = (_rotate(h, 27) * P1 + P4) & MASK64
        at += 8
    if at + 4 <= len(data):
        h ^= (struct.unpack_from("<I", data, at)[0] * P1) & MASK64
        h = (_rotate(h, 23) * P2 + P3) & MASK64
        at += 4
    for byte in data[at:]:
        h = (_rotate(h ^ ((byte * P5) & MASK64), 11) * P1) & MASK64
    h = ((h ^ (h >> 33)) * P2) & MASK64
    h = ((h ^ (h >> 29)) * P3) & MASK64
    return h ^ (h >> 32)


def checksum(data):
    return xxh64(data) or 1


def self_test():
    """Answers that others published: Random123's known-answer file, and xxHash's own."""
    assert philox((0, 0), (0, 0, 0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox((MASK32,) * 2, (MASK32,) * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)) == \
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"Call me Ishmael. Some years ago--never mind how long precisely-") == \
        0x02A2E85470D6FD96
    assert tensor_id("foobar") == 0x85944171F73967E8
    # A product that rounds differently in f32 than in double, and a denormal quotient.
    assert f32_bits(f32(f32(0.1) * f32(0.3))) == 0x3CF5C290
    assert f32_bits(f32(f32_from_bits(1) / 127.0)) == 0
