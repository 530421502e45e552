# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import gradsieve
import pytest
from gradsieve.spec import rule_pairs
from rank_launcher import environment


def test_canonical_spells_every_default_out():
    text = gradsieve.canonical("topk(density=0.02)|int8")
    assert text.startswith("topk(density=0.02, ")
    assert "int8(block=256" in text and "feedback=none" in text
    assert gradsieve.canonical(text) == text


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(gradsieve.SpecError, match="did you mean 'density'") as caught:
        gradsieve.canonical("topk(densty=0.1)")
    assert caught.value.code == "unknown_name"
    assert isinstance(caught.value, ValueError)


def test_a_value_out_of_range_says_the_range():
    with pytest.raises(gradsieve.SpecError, match="density") as caught:
        gradsieve.canonical("topk(density=3)")
    assert caught.value.code == "invalid_argument"


def test_info_counts_bytes_and_claims():
    dense = gradsieve.info("none", 1000)
    assert {"lossless", "unbiased", "fixed_rate"} <= dense.claims
    assert dense.contraction == 1.0 and not dense.feedback
    assert dense.settled_bytes == 4000

    sparse = gradsieve.info("topk(density=0.01) ; feedback=residual", 100_000)
    assert "lossless" not in sparse.claims and sparse.feedback
    assert sparse.settled_bytes < 0.02 * 400_000
    assert (sparse.state_bytes_merge, sparse.state_bytes_exact) == (400_000, 800_000)


def test_plugins_are_documented():
    by_name = {(plugin["kind"], plugin["name"]): plugin for plugin in gradsieve.plugins()}
    topk = by_name["sparsifier", "topk"]
    assert topk["summary"] and topk["paper"]
    assert "density" in {parameter["name"] for parameter in topk["params"]}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("none", [("*", "none")]),
        ({"*.bias": "none", "*": "int8"}, [("*.bias", "none"), ("*", "int8")]),
        ([("a", "int8"), ("*", "none")], [("a", "int8"), ("*", "none")]),
    ],
)
def test_rules_may_be_a_spec_a_mapping_or_pairs(rules, expected):
    assert rule_pairs(rules) == expected


@pytest.mark.parametrize("rules", [[], {}, [("a", "b", "c")], [("a", 1)]])
def test_other_rules_say_what_was_expected(rules):
    with pytest.raises(ValueError, match="expected a spec, or pairs"):
        rule_pairs(rules)


def run_python(code: str, **extra: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_missing_library_is_one_sentence():
    done = run_python("import gradsieve", GRADSIEVE_LIBRARY="/nowhere/libgsv.so")
    assert done.returncode != 0
    assert "found no libgsv.so" in done.stderr and "GRADSIEVE_LIBRARY" in done.stderr


def test_the_package_alone_imports_neither_torch_nor_numpy():
    code = "import sys, gradsieve; print({'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    assert run_python(code).stdout.strip() == "set()"
