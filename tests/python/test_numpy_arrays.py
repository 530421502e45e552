# SPDX-License-Identifier: Apache-2.0
import gradsieve
import gradsieve.numpy as gn
import numpy as np
import pytest

SPEC = "topk(density=0.1) | int8 ; feedback=residual"


def heavy_tailed(count: int, seed: int = 3) -> np.ndarray:
    draws = np.random.default_rng(seed).standard_normal(count)
    return (np.sign(draws) * np.abs(draws) ** 3).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 7, 31, 33, 1025, 65537])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_none_gives_the_same_values_back(count, dtype):
    gradient = heavy_tailed(count).astype(dtype)
    payload = gn.encode(gradient, "none")
    again = gn.decode(payload, "none", gradient.shape, dtype)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again, gradient)


@pytest.mark.parametrize("count", [1, 33, 1025, 65537])
def test_what_is_not_sent_waits_in_the_residual(count):
    residual = np.zeros(count, np.float32)
    sent, given = np.zeros(count), np.zeros(count)
    for step in range(6):
        gradient = heavy_tailed(count, step)
        payload = gn.encode(gradient, SPEC, residual=residual, step=step)
        sent += gn.decode(payload, SPEC, count)
        given += gradient
    # One rounding of the sum of gradient and residual per step.
    bound = 6 * 2.0**-23 * np.abs(given).max() + 1e-6
    np.testing.assert_allclose(sent + residual, given, rtol=0, atol=bound * 8)
    if count > 1:
        assert np.abs(residual).max() > 0


def test_topk_keeps_the_largest():
    gradient = heavy_tailed(1000)
    kept = gn.decode(gn.encode(gradient, "topk(density=0.05)"), "topk(density=0.05)", 1000)
    largest = np.sort(np.abs(gradient))[-50:]
    assert np.count_nonzero(kept) == 50
    np.testing.assert_array_equal(np.sort(np.abs(kept[kept != 0])), largest)


def test_shapes_and_strides_do_not_matter():
    square = heavy_tailed(36).reshape(6, 6)
    payload = gn.encode(square.T, "none")
    np.testing.assert_array_equal(gn.decode(payload, "none", (6, 6)), square.T)


def test_seed_step_and_rank_choose_the_random_numbers():
    gradient = heavy_tailed(5000)
    spec = "int4(rounding=stochastic)"
    first = gn.encode(gradient, spec, seed=1, step=2, rank=3)
    assert gn.encode(gradient, spec, seed=1, step=2, rank=3) == first
    draws = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4)]
    bodies = {gn.encode(gradient, spec, seed=s, step=t, rank=r)[64:] for s, t, r in draws}
    assert len(bodies) == 4
    assert gn.encode(gradient, spec, seed=1, step=2, rank=3, num_threads=3) == first


def test_every_truncated_payload_is_an_error():
    payload = gn.encode(heavy_tailed(300), SPEC)
    for length in range(0, len(payload), 7):
        with pytest.raises(gradsieve.GradsieveError) as caught:
            gn.decode(payload[:length], SPEC, 300)
        assert caught.value.code == "corrupt_payload"


def test_a_payload_for_another_shape_is_an_error():
    payload = gn.encode(heavy_tailed(300), "int8")
    with pytest.raises(gradsieve.GradsieveError):
        gn.decode(payload, "int8", 301)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(value):
    gradient = heavy_tailed(100)
    gradient[41] = value
    with pytest.raises(gradsieve.GradsieveError) as caught:
        gn.encode(gradient, "int8")
    assert caught.value.code == "non_finite"


@pytest.mark.parametrize(
    "residual",
    [np.zeros(9, np.float32), np.zeros(10), np.zeros(20, np.float32)[::2], [0.0] * 10],
)
def test_a_residual_that_does_not_fit_is_refused(residual):
    with pytest.raises(ValueError, match="expected a writable contiguous float32 array of 10"):
        gn.encode(heavy_tailed(10), SPEC, residual=residual)


def test_other_element_types_are_refused_by_name():
    with pytest.raises(TypeError, match="int64; expected float32"):
        gn.encode(np.arange(5), "none")


def test_a_residual_needs_feedback():
    with pytest.raises(gradsieve.GradsieveError, match="feedback=residual"):
        gn.encode(heavy_tailed(10), "int8", residual=np.zeros(10, np.float32))
