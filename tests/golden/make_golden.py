#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden payloads and their index, from docs/wire_format.md and not from our library.

usage: make_golden.py            write payloads/*.bin and golden.json beside this script
       make_golden.py --check    make them again and compare; exit 1 if a byte differs

The frames of the byte stage are zstd's own and not ours to pin: stored bodies are golden both ways,
a frame assembled by hand from RFC 8878 is golden for decoding alone.
"""
import json
import math
import pathlib
import struct
import sys

sys.dont_write_bytecode = True  # a test leaves nothing in the source tree

import golden_codecs as codec
import golden_damage as damage
import golden_numbers as num
from golden_numbers import f32

HERE = pathlib.Path(__file__).resolve().parent
SEED = 0x5EED0123456789AB
TENSOR = "encoder.layer.0.weight"
RANK = 2


def heavy_tailed(n, salt=0):
    """Values of both signs over ten binades, none zero, made by Philox."""
    values = []
    for i in range(n):
        a, b, _, _ = num.philox_at((0xC0FFEE, salt), i, 0)
        magnitude = (1.0 + a / 2.0 ** 32) * 2.0 ** (b % 10 - 6)
        values.append(f32(-magnitude if b & 0x80000000 else magnitude))
    return values


def with_zeros(n, salt=0):
    values = heavy_tailed(n, salt)
    for i in range(n):
        if i % 5 == 3:
            values[i] = -0.0 if i % 2 else 0.0
    return values


def four_blocks():
    """Blocks of 16: heavy-tailed, zeros, a constant, denormals, and a short last one."""
    denormals = [num.f32_from_bits(((i * 7919) % 300 + 1) | (0x80000000 if i % 3 else 0))
                 for i in range(16)]
    return heavy_tailed(16, 1) + [0.0] * 16 + [f32(0.01)] * 16 + denormals + heavy_tailed(5, 2)


class Golden:
    """Collects cases; each adds one file and one entry of the index."""

    def __init__(self):
        self.files = {}
        self.cases = []

    def add(self, name, spec, pieces, codec_id, encode, step=5, dtype="f32", round_=0,
            with_checksum=True, encodes=True, damaged=None, header=None, travels="payload"):
        """pieces: lists of input values; encode(values, draw) -> (body, decoded)."""
        bodies, decoded, described = [], [], []
        for i, values in enumerate(pieces):
            tensor = f"{TENSOR}.{i}"
            offset = 1000 * i + 3 if len(pieces) > 1 else 0
            draw = codec.Draw(SEED, num.tensor_id(tensor), RANK, step, offset)
            body, result = encode(values, draw)
            bodies.append(body)
            decoded += result
            described.append({"tensor": tensor, "offset": offset, "input": hex_of(values, dtype),
                              "decoded": hex_of(result, dtype)})
        fields = {"step": step, "rank": RANK, "round_": round_, **(header or {})}
        if travels == "payload":
            data = codec.payload(bodies, codec.CODECS[codec_id], sum(map(len, pieces)),
                                 with_checksum=with_checksum, **fields)
        else:
            data = bodies[0]
        self.files[f"{name}.bin"] = data
        self.cases.append({
            "name": name, "spec": spec, "dtype": dtype, "step": step, "round": round_,
            "codec": codec.CODECS[codec_id], "checksum": with_checksum, "encodes": encodes,
            "travels": travels, "sequence": fields.get("sequence", 0),
            "plan_hash": f"{fields.get('plan_hash', 0):016x}", "file": f"{name}.bin",
            "pieces": described,
            "damaged": damage.edits(data, damaged or [])})


def hex_of(values, dtype):
    return struct.pack(f"<{len(values)}{'d' if dtype == 'f64' else 'f'}", *values).hex()


def value_codecs(golden):
    mixed = four_blocks()
    rough = [f32(x * 1.0e-3) for x in heavy_tailed(41, 3)]
    halves = heavy_tailed(30, 4) + [f32(7.0e4), f32(-1.0e30), f32(3.0e-8), f32(2.0 ** -25),
                                    f32(1.0 + 2.0 ** -11), f32(1.0 + 3 * 2.0 ** -11), 65519.0]
    doubles = [1.0 / 3.0, -1.0 / 7.0, 5e-324, 1.7976931348623157e308, 0.1]
    golden.add("none_f32", "none", [mixed], "none", codec.none_f32, damaged=damage.HEADER)
    golden.add("none_f32_body", "none", [mixed], "none", codec.none_f32, with_checksum=False,
               damaged=damage.LENGTHS)
    golden.add("none_f64", "none", [doubles], "none", codec.none_f64, dtype="f64")
    bf16s = heavy_tailed(30, 5) + [num.f32_from_bits(b) for b in (
        0x3F808000, 0x3F818000, 0x3F808001, 0x00000001, 0x00008000, 0x00018000, 0x7F7F7FFF)]
    golden.add("bf16", "bf16", [bf16s], "bf16", codec.bf16, with_checksum=False,
               damaged=damage.LENGTHS)
    golden.add("fp16", "fp16", [halves], "fp16", codec.fp16, with_checksum=False,
               damaged=damage.LENGTHS)
    golden.add("int8_nearest", "int8(block=16)", [mixed], "int8", codec.int8(16),
               with_checksum=False, damaged=damage.scales(len(mixed)) + damage.LENGTHS)
    golden.add("int4_nearest", "int4(block=16)", [mixed], "int4", codec.int4(16),
               with_checksum=False, damaged=damage.scales((len(mixed) + 1) // 2) + damage.LENGTHS)
    stochastic = {"int8": codec.int8(16, True), "int4": codec.int4(16, True)}
    for name, encode in stochastic.items():
        for step in (0, 1 << 33):
            golden.add(f"{name}_stochastic_step{step}", f"{name}(block=16, rounding=stochastic)",
                       [rough], name, encode, step=step)
    golden.add("sign_without_zeros", "sign(block=16)", [heavy_tailed(45, 6)], "sign",
               codec.sign(16), with_checksum=False,
               damaged=damage.scales(4 + 6, has_zeros=0) + damage.LENGTHS)
    golden.add("sign_with_zeros", "sign(block=16)", [with_zeros(45, 7) + [0.0] * 19], "sign",
               codec.sign(16))
    golden.add("sign_one_block", "sign(block=65536)", [heavy_tailed(4099, 8)], "sign",
               codec.sign(65536))
    for name in ("none", "bf16", "fp16", "int8", "int4", "sign"):
        encode = {"none": codec.none_f32, "bf16": codec.bf16, "fp16": codec.fp16,
                  "sign": codec.sign(256), **{"int8": codec.int8(256), "int4": codec.int4(256)}}
        spec = name if name in ("none", "bf16", "fp16") else f"{name}(block=256)"
        golden.add(f"{name}_empty", spec, [[]], name, encode[name])
        golden.add(f"{name}_one_element", spec, [[f32(-0.3)]], name, encode[name])


def sparse(golden):
    none, int8, sign = codec.none_f32, codec.int8(8), codec.sign(8)

    def topk(k, form, value_codec):
        return lambda values, draw: codec.sparse_body(
            values, codec.topk(values, k), 1, form, value_codec)

    add = lambda name, spec, values, encode, **rest: golden.add(  # noqa: E731
        name, spec, [values], "pipeline", encode, **rest)
    base = heavy_tailed(100, 10)
    add("topk_bitmap", "topk(density=0.1) | none | index(bitmap)", base,
        topk(10, codec.BITMAP, none), with_checksum=False, damaged=damage.bitmap(100, 10))
    add("topk_elias_fano", "topk(density=0.1) | none | index(elias_fano)", base,
        topk(10, codec.ELIAS_FANO, none), with_checksum=False, damaged=damage.elias_fano(100, 10))
    add("topk_auto_sparse", "topk(density=0.01) | none | index(auto)", heavy_tailed(700, 11),
        topk(7, None, none))
    add("topk_auto_dense", "topk(density=0.5) | none | index(auto)", base, topk(50, None, none))
    add("topk_all", "topk(density=1) | none | index(auto)", base, topk(100, None, none))
    add("topk_one_index", "topk(density=0.01) | none | index(elias_fano)", base,
        topk(1, codec.ELIAS_FANO, none))
    add("topk_one_of_one", "topk(density=0.01) | none | index(auto)", [f32(0.7)],
        topk(1, None, none))
    add("topk_empty", "topk(density=0.01) | none | index(auto)", [], topk(0, None, none))
    ties = [f32(0.25) if i % 2 else f32(-0.25) for i in range(64)]
    ties[40] = 1.0
    add("topk_ties_go_low", "topk(density=0.125) | none | index(bitmap)", ties,
        topk(8, codec.BITMAP, none))
    zeros = [0.0, -0.0, 0.0, 5.0] + [-0.0, 0.0] * 6
    add("topk_zeros_tie", "topk(density=0.25) | none | index(auto)", zeros, topk(4, None, none))
    last = [0.0] * 63 + [2.0]
    last[:4] = [3.0, -4.0, 5.0, -6.0]
    for k, n, values in ((5, 64, last), (16, 64, heavy_tailed(64, 12)),
                         (50, 99, heavy_tailed(99, 13)), (3, 100, heavy_tailed(100, 14))):
        add(f"topk_elias_fano_{k}_of_{n}", f"topk(density={k / n:.9g}) | none | index(elias_fano)",
            values, topk(k, codec.ELIAS_FANO, none))
    add("topk_int8", "topk(density=0.2) | int8(block=8) | index(auto)", base,
        topk(20, None, int8), with_checksum=False, damaged=damage.sparse_sizes(20, 100))
    add("topk_sign", "topk(density=0.2) | sign(block=8) | index(auto)", base, topk(20, None, sign))
    add("topk_bf16", "topk(density=0.2) | bf16 | index(auto)", base, topk(20, None, codec.bf16))
    add("topk_fp16", "topk(density=0.21) | fp16 | index(auto)", base, topk(21, None, codec.fp16))
    add("topk_int4", "topk(density=0.21) | int4(block=8) | index(auto)", base,
        topk(21, None, codec.int4(8)))

    def threshold(limit, capacity):
        return lambda values, draw: codec.sparse_body(
            values, codec.threshold(values, limit, capacity), 1, None, none)

    add("threshold_none_qualify", "threshold(value=100)", base, threshold(100.0, 100))
    add("threshold_some", "threshold(value=4, max_density=1)", base, threshold(4.0, 100))
    equal = [f32(0.5), f32(-0.5), f32(0.49999997)] * 5
    add("threshold_takes_equality", "threshold(value=0.5, max_density=1)", equal,
        threshold(0.5, 15))
    add("threshold_overflow_keeps_low_indices", "threshold(value=0.01, max_density=0.1)", base,
        threshold(0.01, 10))

    def blocktopk(block, norm, k):
        return lambda values, draw: codec.sparse_body(
            values, codec.blocktopk(values, block, norm, k), block, None, none)

    odd = heavy_tailed(103, 15)
    odd[100:] = [40.0, 0.5, -0.5]
    flat = [f32(0.1)] * 64
    flat[20:24] = [0.0, 0.0, 0.0, 0.75]   # the largest element, but not the largest 2-norm
    flat[40:44] = [0.5] * 4
    for norm in ("l2", "linf"):
        add(f"blocktopk_{norm}_short_last_block", f"blocktopk(density=0.25, block=4, norm={norm})",
            odd, blocktopk(4, norm, codec.num_kept(0.25, 26)))
        add(f"blocktopk_{norm}_one_block", f"blocktopk(density=0.0625, block=4, norm={norm})",
            flat, blocktopk(4, norm, 1))


def sums_and_stages(golden):
    values = heavy_tailed(64, 20)

    def randomk(draw_values, draw):
        indices = codec.randomk(SEED, num.tensor_id(f"{TENSOR}.0"), draw.step, 64, 16)
        scaled = [f32(draw_values[i] * 4.0) for i in indices]  # n / k = 4: unbiased, exact
        return codec.floats(scaled), codec.scatter(64, indices, scaled)

    for step in (0, 7, 1 << 40):
        golden.add(f"randomk_step{step}", "randomk(density=0.25)", [values], "pipeline", randomk,
                   step=step, travels="body")

    def stored(values, draw):
        body, decoded = codec.none_f32(values)
        return codec.zstd_stored(body), decoded

    golden.add("zstd_stored", "none | zstd", [heavy_tailed(9, 21)], "zstd", stored,
               with_checksum=False, damaged=damage.zstd_stored(36))

    def frame(values, draw):
        body, decoded = codec.none_f32(values)
        return codec.zstd_frame(codec.zstd_rle_frame(body[0], len(body)), len(body)), decoded

    golden.add("zstd_frame_of_equal_bytes", "none | zstd", [[num.f32_from_bits(0x3F3F3F3F)] * 40],
               "zstd", frame, encodes=False, with_checksum=False, damaged=damage.ZSTD_FRAME)
    pieces = [heavy_tailed(5, 22), heavy_tailed(7, 23)]
    golden.add("pieces_two", "int8(block=4, rounding=stochastic)", pieces, "int8",
               codec.int8(4, True), with_checksum=False, damaged=damage.PIECES,
               header={"sequence": 77, "plan_hash": 0xFEEDFACE12345678})
    golden.add("pieces_with_an_empty_one", "none", [heavy_tailed(3, 24), [], heavy_tailed(2, 25)],
               "none", codec.none_f32)


def cltk(golden):
    """Four ranks, step 6: the leader is rank 2. Both rounds of a new set."""
    n, k = 90, 9
    values = heavy_tailed(n, 30)
    indices = codec.topk(values, k)
    agreed = codec.agreement_body(indices, n)
    taken = codec.floats([values[i] for i in indices])
    golden.files["cltk_agreement.bin"] = agreed
    golden.files["cltk_values.bin"] = taken
    return {"spec": "cltk(density=0.1)", "world_size": 4, "leader": 2, "step": 6,
            "tensor": TENSOR, "input": hex_of(values, "f32"), "agreement": "cltk_agreement.bin",
            "values": "cltk_values.bin",
            "decoded": hex_of(codec.scatter(n, indices, [values[i] for i in indices]), "f32"),
            "damaged": damage.edits(agreed, damage.agreement(k))}


def files(golden):
    """Whole .gsv files: a matrix, a vector of sparse values, and an array without elements."""
    described = []
    for name, spec, dtype, sizes, encode in (
            ("file_matrix", "int8(block=16, rounding=nearest)", 0, [3, 7], codec.int8(16)),
            ("file_halves", "none", 2, [5], codec.none_f32),
            ("file_without_elements", "none", 3, [4, 0, 2], codec.none_f64)):
        n = math.prod(sizes)
        values = heavy_tailed(n, 40 + n)
        body, _ = encode(values)
        payload = codec.payload([body], codec.CODECS[spec.split("(")[0]], n, rank=3, step=11)
        data = codec.file_bytes(spec, dtype, SEED, sizes, payload)
        golden.files[f"{name}.bin"] = data
        described.append({"name": name, "spec": spec, "dtype": dtype, "seed": f"{SEED:016x}",
                          "sizes": sizes, "payload": payload.hex(), "file": f"{name}.bin",
                          "damaged": damage.edits(
                              data, damage.FILE + damage.file_fields(num.checksum, n))})
    return described


def numbers():
    """Known answers of Philox and of what is made of it."""
    def words(values):
        return [f"{v:08x}" for v in values]

    philox = []
    for key, counter in (((0, 0), (0, 0, 0, 0)), ((num.MASK32,) * 2, (num.MASK32,) * 4),
                         ((0xA4093822, 0x299F31D0),
                          (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)),
                         ((1, 2), (3, 4, 5, 6)), ((SEED & num.MASK32, SEED >> 32), (9, 0, 1, 0))):
        philox.append({"key": words(key), "counter": words(counter),
                       "words": words(num.philox(key, counter))})
    keys = []
    for seed, tensor, purpose, rank in ((0, "", 1, 0), (SEED, TENSOR, 1, 3), (SEED, TENSOR, 2, 3),
                                        (SEED, TENSOR, 3, 3), (SEED, "b", 4, num.SHARED_DRAW)):
        key = num.philox_key(seed, num.tensor_id(tensor), purpose, rank)
        keys.append({"seed": f"{seed:016x}", "tensor": tensor, "purpose": purpose,
                     "rank": rank, "tensor_id": f"{num.tensor_id(tensor):016x}",
                     "key": words(key),
                     "rounding_bits": [num.rounding_bits(key, 12345678901, (1 << 33) + i)
                                       for i in range(20)],
                     "rounding_uniform": hex_of([num.rounding_uniform(key, 12345678901,
                                                                      (1 << 33) + i)
                                                 for i in range(20)], "f32")})
    texts = ["", "a", "Call me Ishmael. Some years ago--never mind how long precisely-"]
    return {"philox": philox, "keys": keys, "first_element": 1 << 33, "step": 12345678901,
            "xxh64": [{"text": t, "hash": f"{num.checksum(t.encode()):016x}"} for t in texts]}


def everything():
    num.self_test()
    golden = Golden()
    value_codecs(golden)
    sparse(golden)
    sums_and_stages(golden)
    index = {"license": "SPDX-License-Identifier: Apache-2.0", "seed": f"{SEED:016x}",
             "rank": RANK, "numbers": numbers(), "cltk": cltk(golden), "files": files(golden),
             "cases": golden.cases}
    written = {f"payloads/{name}": data for name, data in golden.files.items()}
    written["golden.json"] = (json.dumps(index, indent=1) + "\n").encode()
    return written


def main(arguments):
    written = everything()
    if arguments == ["--check"]:
        present = {f"payloads/{p.name}" for p in (HERE / "payloads").glob("*")} | {"golden.json"}
        wrong = sorted(name for name, data in written.items()
                       if not (HERE / name).exists() or (HERE / name).read_bytes() != data)
        wrong += sorted(present - set(written))
        for name in wrong:
            print(f"golden: {name} is not what make_golden.py makes", file=sys.stderr)
        return 1 if wrong else 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    (HERE / "payloads").mkdir(exist_ok=True)
    for name, data in written.items():
        (HERE / name).write_bytes(data)
    print(f"golden: wrote {len(written)} files, {sum(map(len, written.values()))} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
