# SPDX-License-Identifier: Apache-2.0
"""Codecs written in Python, asked what every codec is asked."""

import threading

import gradsieve
import gradsieve.numpy as gn
import numpy as np
import pytest
from gradsieve._comm import Comm
from gradsieve.codec import last_error, register
from some_codecs import Halves, Largest


@pytest.fixture(scope="module", autouse=True)
def registered():
    register(Halves())
    register(Largest())


def heavy_tailed(count, seed=3):
    draws = np.random.default_rng(seed).standard_normal(count)
    return (np.sign(draws) * np.abs(draws) ** 3).astype(np.float32)


COUNTS = [0, 1, 7, 31, 32, 33, 255, 1025, 65537]


@pytest.mark.parametrize("count", COUNTS)
def test_what_comes_back_is_what_was_encoded(count):
    gradient = heavy_tailed(count)
    halves = gn.decode(gn.encode(gradient, "py_halves"), "py_halves", count)
    np.testing.assert_array_equal(halves, gradient.astype(np.float16).astype(np.float32))
    largest = gn.decode(gn.encode(gradient, "py_largest"), "py_largest", count)
    assert np.count_nonzero(largest) == min(count, 1)
    if count:
        assert np.abs(largest).max() == np.abs(gradient).max()


@pytest.mark.parametrize("name", ["py_halves", "py_largest"])
def test_same_input_same_bytes_for_every_number_of_threads(name):
    gradient = heavy_tailed(5000)
    payloads = {gn.encode(gradient, name, num_threads=n) for n in (1, 2, 3)}
    assert len(payloads) == 1


@pytest.mark.parametrize("name", ["py_halves", "py_largest"])
def test_every_truncated_payload_is_an_error(name):
    payload = gn.encode(heavy_tailed(33), name)
    for length in range(len(payload)):
        with pytest.raises(gradsieve.GradsieveError) as caught:
            gn.decode(payload[:length], name, 33)
        assert caught.value.code == "corrupt_payload"


def test_plugins_lists_them_as_slow():
    found = {plugin["name"]: plugin for plugin in gradsieve.plugins()}
    assert "slow" in found["py_halves"]["summary"]
    assert found["py_halves"]["claims"]["fixed_rate"]


def exchanged(spec, num_ranks, steps, count=1000):
    """Sent, given and residuals of ranks that are threads."""
    sent = [np.zeros(count) for _ in range(num_ranks)]
    given, rest = np.zeros(count), np.zeros(count)
    problems = []
    lock = threading.Lock()

    def rank(comm, number):
        try:
            exchange = gn.Exchange(comm, {"w": np.zeros(count, np.float32)}, spec, timeout=20.0)
            for step in range(steps):
                gradient = heavy_tailed(count, 100 * step + number)
                with lock:
                    given[:] += gradient
                exchange.reduce({"w": gradient})
                sent[number] += gradient
            with lock:
                rest[:] += exchange.residual("w")
        except Exception as error:
            problems.append(error)

    threads = [
        threading.Thread(target=rank, args=(comm, number))
        for number, comm in enumerate(Comm.local(num_ranks))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems, problems
    return sent, given, rest


@pytest.mark.parametrize("name", ["py_halves", "py_largest"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_nothing_is_lost_and_ranks_agree(name, num_ranks):
    sent, given, rest = exchanged(f"{name} ; feedback=residual", num_ranks, 7)
    for other in sent[1:]:
        np.testing.assert_array_equal(other, sent[0])
    lost = sent[0] * num_ranks + rest - given
    assert np.abs(lost).max() <= 7 * 2.0**-20 * np.abs(given).max()
    assert np.abs(rest).max() > 0


def test_an_exception_in_a_codec_is_an_error_that_can_be_asked_for():
    class Broken(Halves):
        name = "py_broken"
        payload_id = 203

        def encode(self, gradient, call):
            raise ZeroDivisionError("on purpose")

    register(Broken())
    with pytest.raises(gradsieve.GradsieveError):
        gn.encode(heavy_tailed(10), "py_broken")
    assert str(last_error("py_broken")) == "on purpose"


def test_more_than_the_capacity_is_an_error_and_no_store():
    class Lying(Halves):
        name = "py_lying"
        payload_id = 204

        def encode(self, gradient, call):
            return bytes(2 * gradient.size + 1)

    register(Lying())
    with pytest.raises(gradsieve.GradsieveError) as caught:
        gn.encode(heavy_tailed(10), "py_lying")
    assert caught.value.code in ("capacity_exceeded", "internal")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "topk"}, "topk"),
        ({"name": "py_x", "payload_id": 7}, "expected 32"),
        ({"name": "py_x", "exchange": "ring"}, "expected one of gather, two_shot"),
        ({"name": "py_x", "claims": frozenset({"fast"})}, "claims has fast"),
    ],
)
def test_a_wrong_declaration_is_refused(change, sentence):
    codec = Halves()
    for key, value in change.items():
        setattr(codec, key, value)
    with pytest.raises((gradsieve.GradsieveError, ValueError), match=sentence):
        register(codec)
    assert "py_x" not in {plugin["name"] for plugin in gradsieve.plugins()}
