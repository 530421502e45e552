# SPDX-License-Identifier: Apache-2.0
import pytest
from rank_launcher import run_checks
from rank_main import names_of

CASES = [(count, name) for count in (2, 3) for name in names_of("checks_sparse", count)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return {
        count: run_checks("checks_sparse", count, tmp_path_factory.mktemp(f"ranks{count}"), 150)
        for count in (2, 3)
    }


@pytest.mark.parametrize(("count", "check"), CASES)
def test_sparse(results, count, check):
    for rank, result in enumerate(results[count]):
        assert check in result, f"rank {rank} did not come to it"
        assert result[check] == "", f"rank {rank}: {result[check]}"
