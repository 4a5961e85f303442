"""Tests of kernels run in every tier of loops."""

import pytest

import minitransformer as mt
from tests.kernels.promises import TIERS


@pytest.fixture(params=TIERS)
def tier(request):
    with mt.backend(request.param):
        yield request.param
