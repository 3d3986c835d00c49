"""The runs that all tests of reports use, trained once."""

import pytest

from support.report_cases import make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("runs"))
