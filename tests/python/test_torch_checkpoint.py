# SPDX-License-Identifier: Apache-2.0
import pytest
from rank_launcher import run_checks
from rank_main import names_of

CASES = [(count, name) for count in (2, 4) for name in names_of("checks_checkpoint", count)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return {
        count: run_checks("checks_checkpoint", count, tmp_path_factory.mktemp(f"ranks{count}"), 150)
        for count in (2, 4)
    }


@pytest.mark.parametrize(("count", "check"), CASES)
def test_checkpoint(results, count, check):
    for rank, result in enumerate(results[count]):
        assert check in result, f"rank {rank} did not come to it"
        assert result[check] == "", f"rank {rank}: {result[check]}"
