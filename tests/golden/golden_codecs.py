# SPDX-License-Identifier: Apache-2.0
"""Bodies of docs/wire_format.md, written from that page and the formulas of kernels/ops.hpp.

Every encoder returns (body, decoded values); a decoded value is what one decoder adds with weight 1.
"""
import math
import struct

import golden_numbers as num
from golden_numbers import f32


def pad(data, multiple):
    return data + bytes(-len(data) % multiple)


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def blocks_of(values, block):
    return [values[i:i + block] for i in range(0, len(values), block)]


class Draw:
    """Which random numbers a stochastic rounding takes."""

    def __init__(self, seed, tensor, rank, step, first_element=0, purpose=num.QUANTIZE):
        self.key = num.philox_key(seed, tensor, purpose, rank)
        self.step = step
        self.first_element = first_element

    def uniform(self, i):
        return num.rounding_uniform(self.key, self.step, self.first_element + i)


# --- value codecs ---------------------------------------------------------------------------------

def none_f32(values, draw=None):
    return floats(values), list(values)


def none_f64(values, draw=None):
    return struct.pack(f"<{len(values)}d", *values), list(values)


def bf16(values, draw=None):
    bits = [num.bf16_bits(x) for x in values]
    return struct.pack(f"<{len(bits)}H", *bits), [num.f32_from_bits(b << 16) for b in bits]


def fp16(values, draw=None):
    bits = [num.f16_bits(x) for x in values]
    return struct.pack(f"<{len(bits)}H", *bits), [num.f16_value(b) for b in bits]


def quantize(values, bits, block, draw=None):
    """Codes, scales and decoded values of the block quantizer; draw: None rounds to nearest."""
    limit = 2 ** (bits - 1) - 1
    codes, scales, decoded = [], [], []
    for chunk in blocks_of(values, block):
        largest = max(abs(x) for x in chunk)
        scale = f32(largest / limit)
        if f32(scale * limit) < largest:
            scale = num.next_up(scale)
        scales.append(scale)
        for x in chunk:
            level = f32(x / scale) if scale > 0 else 0.0
            if draw is None:
                code = num.rint(level)
            else:
                code = math.floor(f32(level + draw.uniform(len(codes))))
            code = max(-limit, min(limit, code))
            codes.append(code)
            decoded.append(f32(code * scale))
    return codes, scales, decoded


def int8(block, stochastic=False):
    def encode(values, draw=None):
        codes, scales, decoded = quantize(values, 8, block, draw if stochastic else None)
        return pad(struct.pack(f"<{len(codes)}b", *codes), 4) + floats(scales), decoded
    return encode


def int4(block, stochastic=False):
    def encode(values, draw=None):
        codes, scales, decoded = quantize(values, 4, block, draw if stochastic else None)
        nibbles = [code & 15 for code in codes] + [0] * (len(codes) % 2)
        packed = bytes(low | (high << 4) for low, high in zip(nibbles[::2], nibbles[1::2]))
        return pad(packed, 4) + floats(scales), decoded
    return encode


def bit_plane(flags):
    plane = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        plane[i // 8] |= int(flag) << (i % 8)
    return bytes(plane)


def sign(block):
    def encode(values, draw=None):
        if not values:
            return b"", []
        scales, decoded = [], []
        for chunk in blocks_of(values, block):
            nonzero = sum(1 for x in chunk if x != 0)
            scale = f32(num.sum_lanes([abs(x) for x in chunk]) / nonzero) if nonzero else 0.0
            scales.append(scale)
            decoded += [scale if x > 0 else -scale if x < 0 else 0.0 for x in chunk]
        has_zeros = any(x == 0 for x in values)
        body = struct.pack("<B3x", has_zeros) + bit_plane([x < 0 for x in values])
        if has_zeros:
            body += bit_plane([x == 0 for x in values])
        return pad(body, 4) + floats(scales), decoded
    return encode


# --- index forms ----------------------------------------------------------------------------------

SHARED, BITMAP, ELIAS_FANO = 0, 1, 2


def bitmap(indices, universe):
    chosen = set(indices)
    return bit_plane([i in chosen for i in range(universe)])


def elias_fano(indices, universe):
    k = len(indices)
    if k == 0:
        return b""
    low_bits = max(0, (universe // k).bit_length() - 1)
    low = 0
    high = 0
    for i, index in enumerate(indices):
        low |= (index & ((1 << low_bits) - 1)) << (i * low_bits)
        high |= 1 << ((index >> low_bits) + i)
    high_bits = k + ((universe - 1) >> low_bits) + 1
    return low.to_bytes((k * low_bits + 7) // 8, "little") + \
        high.to_bytes((high_bits + 7) // 8, "little")


def code_indices(indices, universe, form):
    """(form, bytes); form None takes the fewest bytes, the lower form on a tie."""
    codes = {SHARED: b"", BITMAP: bitmap(indices, universe),
             ELIAS_FANO: elias_fano(indices, universe)}
    if form is None:
        form = min((BITMAP, ELIAS_FANO), key=lambda f: (len(codes[f]), f))
    return form, codes[form]


# --- sparsifiers ----------------------------------------------------------------------------------

def num_kept(density, n):
    """The nearest whole number to density·n, at least 1, at most n."""
    return 0 if n == 0 else min(n, max(1, math.floor(density * n + 0.5)))


def topk(values, k):
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    return sorted(order[:k])


def threshold(values, limit, capacity):
    return [i for i, x in enumerate(values) if abs(x) >= limit][:capacity]


def blocktopk(values, block, norm, k):
    def size(chunk):
        if norm == "linf":
            return max(abs(x) for x in chunk)
        return num.sum_lanes([x * x for x in chunk])
    sizes = [size(chunk) for chunk in blocks_of(values, block)]
    return sorted(sorted(range(len(sizes)), key=lambda b: (-sizes[b], b))[:k])


def randomk(seed, tensor, step, n, k):
    key = num.philox_key(seed, tensor, num.SELECT, num.SHARED_DRAW)
    indices = []
    for j in range(k):
        start, end = j * n // k, (j + 1) * n // k
        bits = num.philox_at(key, j // 4, step)[j % 4]
        indices.append(start + (bits * (end - start) >> 32))
    return indices


def elements_of(indices, granularity, n):
    return [e for j in indices for e in range(j * granularity, min(n, (j + 1) * granularity))]


def scatter(n, elements, values):
    dense = [0.0] * n
    for element, value in zip(elements, values):
        dense[element] = value
    return dense


def sparse_body(values, indices, granularity, form, codec):
    """Codec 16: header of the sparse body, values, indices at the next multiple of 16."""
    n = len(values)
    if n == 0:
        return b"", []
    values = [x + 0.0 for x in values]  # c = g + e with e = 0: a chosen -0 travels as +0
    elements = elements_of(indices, granularity, n)
    value_bytes, taken = codec([values[e] for e in elements])
    form, index_bytes = code_indices(indices, -(-n // granularity), form)
    body = struct.pack("<QQQII", len(indices), len(value_bytes), len(index_bytes), form, 0)
    body += value_bytes
    if index_bytes:
        body = pad(body, 16) + index_bytes
    return body, scatter(n, elements, taken)


def agreement_body(indices, universe):
    """cltk, round 0, a new set from the leader."""
    form, index_bytes = code_indices(indices, universe, None)
    return struct.pack("<B7xQII", 1, len(indices), form, 0) + index_bytes


# --- byte stage -----------------------------------------------------------------------------------

def zstd_stored(body):
    return struct.pack("<IIQ", 0, 0, len(body)) + body


def zstd_rle_frame(byte, count):
    """A zstd frame of `count` ≤ 255 equal bytes, assembled from RFC 8878: magic, a frame header with
    single segment and a one-byte content size, one last block of type RLE."""
    block_header = (count << 3) | (1 << 1) | 1
    return struct.pack("<IBB", 0xFD2FB528, 0x20, count) + \
        block_header.to_bytes(3, "little") + bytes([byte])


def zstd_frame(frame, raw_bytes):
    return struct.pack("<IIQ", 1, 0, raw_bytes) + frame


# --- payloads and files ---------------------------------------------------------------------------

HEADER = struct.Struct("<IBBHIIQQQQQHHI")
CODECS = {"none": 1, "bf16": 2, "fp16": 3, "int8": 4, "int4": 5, "sign": 6, "pipeline": 16,
          "zstd": 24}


def payload(bodies, codec, num_elements, flags=0, status=0, rank=0, step=0, plan_hash=0,
            with_checksum=True, round_=0, sequence=0):
    if len(bodies) == 1:
        behind = bodies[0]
    else:
        behind = struct.pack(f"<{len(bodies)}Q", *map(len, bodies))
        for body in bodies:
            behind = pad(behind, 16) + body  # 64 is a multiple of 16: the same from either start
    hash_ = checksum_of(behind) if with_checksum else 0
    return HEADER.pack(0x31565347, 1, codec, flags, status, rank, step, plan_hash, num_elements,
                       len(behind), hash_, round_, len(bodies), sequence) + behind


def checksum_of(behind):
    return num.checksum(behind)


def file_bytes(spec, dtype, seed, sizes, payload_bytes):
    """What `gradsieve encode` writes."""
    text = spec.encode()
    head = b"GSVFILE1" + struct.pack("<IIQQQ", len(text), dtype, math.prod(sizes), seed, len(sizes))
    head += struct.pack(f"<{len(sizes)}Q", *sizes) + text
    content = pad(head, 16) + payload_bytes
    return content + struct.pack("<Q", num.checksum(content))
