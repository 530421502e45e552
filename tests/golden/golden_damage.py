# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a payload: (name, function from good bytes to damaged ones).

All of it is corrupt_payload. Where the payload has no checksum, the decoder's own checks have to
find it; body_bytes in the header is then made right, so that they are reached.
"""
import struct

CODE = "corrupt_payload"
BODY = 64


def edits(data, damaged):
    """The index's form of it: the new length, and the bytes that differ from the good ones."""
    result = []
    for name, damage in damaged:
        bad = damage(data)
        assert bad != data, f"{name} changes nothing"
        patches = []
        for at in range(len(bad)):
            if at < len(data) and bad[at] == data[at]:
                continue
            if patches and patches[-1][0] + len(patches[-1][1]) // 2 == at:
                patches[-1][1] += f"{bad[at]:02x}"
            else:
                patches.append([at, f"{bad[at]:02x}"])
        result.append({"name": name, "code": CODE, "length": len(bad), "bytes": patches})
    return result


def u16(x):
    return struct.pack("<H", x)


def u32(x):
    return struct.pack("<I", x)


def u64(x):
    return struct.pack("<Q", x)


def cut(name, length):
    return name, lambda data: data[:length]


def put(name, at, new):
    """Other bytes at a place, counted from the end if negative."""
    def damage(data):
        start = at + len(data) if at < 0 else at
        assert start + len(new) <= len(data), name
        return data[:start] + new + data[start + len(new):]
    return name, damage


def with_body(data, body):
    """The same header before another body, with the length that it has."""
    return data[:40] + u64(len(body)) + data[48:BODY] + body


def resized(by):
    """A body that is longer or shorter than its elements need."""
    def damage(data):
        body = data[BODY:]
        return with_body(data, body + bytes(by) if by >= 0 else body[:by])
    return f"body_longer_by_{by}" if by >= 0 else f"body_shorter_by_{-by}", damage


def body_cut(name, length):
    return name, lambda data: with_body(data, data[BODY:BODY + length])


HEADER = [
    cut("no_bytes", 0), cut("half_a_header", 32), cut("header_less_one", 63),
    cut("header_alone", 64), cut("last_byte_missing", -1),
    ("one_byte_more", lambda data: data + b"\0"),
    put("magic", 0, b"GSV2"), put("magic_of_zeros", 0, bytes(4)),
    put("version_0", 4, b"\0"), put("version_2", 4, b"\2"),
    put("unknown_flag", 6, u16(4)), put("all_flags", 6, u16(0xFFFF)),
    put("unknown_status", 8, u32(13)), put("status_with_a_body", 8, u32(50)),
    put("body_bytes_0", 40, u64(0)), put("body_bytes_less", 40, u64(3)),
    put("body_bytes_wraps", 40, u64(2 ** 64 - 64)), put("body_bytes_huge", 40, u64(2 ** 63)),
    put("checksum_wrong", 48, u64(1)), put("no_pieces", 58, u16(0)),
    put("more_pieces", 58, u16(65535)), put("flipped_bits_under_the_checksum", 70, b"\xff"),
]

LENGTHS = [resized(by) for by in (-4, -1, 1, 4, 64)] + [body_cut("no_body", 0)]


def scales(num_bytes_before, has_zeros=None):
    """Scales that no encoder writes; they stand at the next multiple of 4."""
    at = BODY + (num_bytes_before + 3) // 4 * 4
    result = [put(f"scale_{name}", at, u32(bits)) for name, bits in (
        ("nan", 0x7FC00000), ("inf", 0x7F800000), ("negative", 0xBF800000),
        ("minus_inf", 0xFF800000))]
    result.append(put("last_scale_nan", -4, u32(0xFFFFFFFF)))
    if has_zeros is not None:
        result += [put("other_zero_plane", BODY, bytes([1 - has_zeros])),
                   put("has_zeros_2", BODY, b"\2")]
    return result


def sparse_sizes(num_indices, universe):
    return [
        put("num_indices_0", BODY, u64(0)), put("num_indices_less", BODY, u64(num_indices - 1)),
        put("num_indices_more", BODY, u64(num_indices + 1)),
        put("num_indices_above_universe", BODY, u64(universe + 1)),
        put("num_indices_huge", BODY, u64(2 ** 63)),
        put("num_indices_max", BODY, u64(2 ** 64 - 1)),
        put("value_bytes_0", BODY + 8, u64(0)),
        put("value_bytes_huge", BODY + 8, u64(2 ** 64 - 16)),
        put("index_bytes_0", BODY + 16, u64(0)),
        put("index_bytes_huge", BODY + 16, u64(2 ** 64 - 1)),
        put("form_shared", BODY + 24, u32(0)), put("form_3", BODY + 24, u32(3)),
        put("form_4", BODY + 24, u32(4)), put("form_9", BODY + 24, u32(9)),
        put("form_max", BODY + 24, u32(2 ** 32 - 1)),
        resized(-1), resized(1), body_cut("sparse_header_cut", 31),
        body_cut("sparse_header_alone", 32), body_cut("no_body", 0),
    ]


def index_bytes_at(num_values):
    return BODY + (32 + 4 * num_values + 15) // 16 * 16


def bitmap(universe, k):
    at = index_bytes_at(k)
    size = (universe + 7) // 8

    def moved_beyond(data):
        """The last set bit moves to an unused place: the count stays right."""
        plane = bytearray(data[at:])
        last = max(i for i in range(universe) if plane[i // 8] >> (i % 8) & 1)
        plane[last // 8] &= ~(1 << (last % 8)) & 0xFF
        plane[universe // 8] |= 1 << (universe % 8)
        return data[:at] + bytes(plane)

    assert universe % 8 != 0
    return [put("no_bit", at, bytes(size)), put("all_bits", at, b"\xff" * size),
            ("bit_beyond_the_universe", moved_beyond),
            put("form_is_elias_fano", BODY + 24, u32(2))]


def elias_fano(universe, k):
    at = index_bytes_at(k)
    low_bits = max(0, (universe // k).bit_length() - 1)
    low_bytes = (k * low_bits + 7) // 8
    high_bytes = (k + ((universe - 1) >> low_bits) + 1 + 7) // 8

    def code_of(indices):
        low = high = 0
        for i, index in enumerate(indices):
            low |= (index & ((1 << low_bits) - 1)) << (i * low_bits)
            high |= 1 << ((index >> low_bits) + i)
        return low.to_bytes(low_bytes, "little") + high.to_bytes(high_bytes, "little")

    def ascending(first):
        return list(range(first, first + k))

    top = ((universe - 1) >> low_bits << low_bits) + (1 << low_bits) - 1  # codable, not below U
    assert top >= universe
    return [
        put("index_twice", at, code_of([3, 3] + ascending(4)[:k - 2])),
        put("two_swapped_low_parts", at, code_of([1, 0] + ascending(10)[:k - 2])),
        put("index_is_universe", at, code_of(ascending(5)[:k - 1] + [universe])),
        put("index_above_universe", at, code_of(ascending(5)[:k - 1] + [top])),
        put("high_part_without_ones", at + low_bytes, bytes(high_bytes)),
        put("high_part_of_ones", at + low_bytes, b"\xff" * high_bytes),
        put("form_is_bitmap", BODY + 24, u32(1)),
    ]


def zstd_stored(raw_bytes):
    return [
        put("form_2", BODY, u32(2)), put("form_is_frame", BODY, u32(1)),
        put("raw_bytes_more", BODY + 8, u64(raw_bytes + 4)),
        put("raw_bytes_less", BODY + 8, u64(raw_bytes - 4)),
        put("raw_bytes_huge", BODY + 8, u64(2 ** 62)),
        body_cut("stage_header_cut", 15), body_cut("no_body", 0), resized(4), resized(-4),
    ]


ZSTD_FRAME = [
    put("frame_magic", BODY + 16, b"\0"), put("form_is_stored", BODY, u32(0)),
    put("frame_says_more", BODY + 21, b"\xa4"), put("raw_bytes_more", BODY + 8, u64(164)),
    put("raw_bytes_huge", BODY + 8, u64(2 ** 40)), put("reserved_block", BODY + 22, b"\x07"),
    resized(-1), resized(1),
]

PIECES = [
    put("first_body_longer", BODY, u64(13 + 16)),
    put("first_body_huge", BODY, u64(2 ** 64 - 80)),
    put("last_body_shorter", BODY + 8, u64(4)), put("last_body_longer", BODY + 8, u64(1000)),
    put("three_pieces", 58, u16(3)), body_cut("table_cut", 8),
]


def agreement(k):
    """Damage of an agreement body, which has no header of its own."""
    return [
        cut("no_bytes", 0), cut("kind_alone", 1), cut("half", 20), cut("last_byte_missing", -1),
        ("one_byte_more", lambda data: data + b"\0"), put("kind_2", 0, b"\2"),
        put("fewer_indices", 8, u64(k - 1)), put("more_indices", 8, u64(k + 1)),
        put("huge_count", 8, u64(2 ** 63)), put("form_shared", 16, u32(0)),
        put("form_7", 16, u32(7)), put("index_bytes_of_ones", -4, b"\xff" * 4),
    ]


FILE = [
    cut("no_bytes", 0), cut("characters_alone", 8), cut("cut_in_the_sizes", 44), cut("half", 90),
    cut("hash_missing", -8), cut("last_byte_missing", -1), ("one_byte_more", lambda data: data + b"\0"),
    put("other_characters", 0, b"GSVFILE2"), put("spec_bytes_huge", 8, u32(2 ** 32 - 1)),
    put("unknown_dtype", 12, u32(4)), put("other_num_elements", 16, u64(6)),
    put("num_dimensions_huge", 32, u64(2 ** 61)), put("flipped_bit_of_the_seed", 24, b"\x01"),
    put("flipped_bit_of_the_hash", -1, b"\x5a"),
]


def rehashed(checksum, edit):
    """The same damage under a hash that fits: only the fields can tell."""
    name, change = edit
    def damage(data):
        bad = change(data)[:-8]
        return bad + u64(checksum(bad))
    return f"{name}_rehashed", damage


def file_fields(checksum, num_elements):
    # Any size is right beside a size of 0.
    sizes = [put("first_size_huge", 40, u64(2 ** 63))] if num_elements else []
    return [rehashed(checksum, edit) for edit in (
        put("other_characters", 0, b"GSVFILE2"), put("spec_bytes_huge", 8, u32(2 ** 32 - 1)),
        put("unknown_dtype", 12, u32(4)), put("other_num_elements", 16, u64(6)),
        put("num_dimensions_65", 32, u64(65)), put("num_dimensions_huge", 32, u64(2 ** 61)),
        *sizes)]
