# SPDX-License-Identifier: Apache-2.0
"""Two codecs in Python, for test_codecs.py and for the conformance suite."""

import numpy as np
from gradsieve.codec import Codec


class Halves(Codec):
    name = "py_halves"
    summary = "Sends every element as an IEEE half, saturated"
    payload_id = 201
    claims = frozenset({"deterministic", "fixed_rate", "elementwise"})
    exchange = "two_shot"

    def capacity_bytes(self, num_elements):
        return 2 * num_elements

    def encode(self, gradient, call):
        return np.clip(gradient, -65504, 65504).astype(np.float16).tobytes()

    def decode_add(self, body, weight, accumulator):
        if len(body) != 2 * accumulator.size:
            raise ValueError("a body of another length")
        accumulator += np.float32(weight) * np.frombuffer(body, np.float16).astype(np.float32)


class Largest(Codec):
    """The one largest element, and noise that is a function of the call."""

    name = "py_largest"
    summary = "Sends the largest element"
    payload_id = 202

    def capacity_bytes(self, num_elements):
        return 8 if num_elements else 0

    def encode(self, gradient, call):
        if not gradient.size:
            return b""
        where = int(np.abs(gradient).argmax())
        return np.uint32(where).tobytes() + gradient[where].tobytes()

    def decode_add(self, body, weight, accumulator):
        if not accumulator.size and not len(body):
            return
        if len(body) != 8:
            raise ValueError("a body of another length")
        where = int(np.frombuffer(body[:4], np.uint32)[0])
        if where >= accumulator.size:
            raise ValueError("an index past the gradient")
        accumulator[where] += np.float32(weight) * np.frombuffer(body[4:], np.float32)[0]
