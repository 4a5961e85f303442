import numpy as np

import minitransformer as mt
from minitransformer.training.record import circumstances, processor


def test_the_record_names_versions_and_machine():
    said = circumstances()
    assert said["numpy"] == np.__version__
    assert said["minitransformer"] == mt.__version__
    assert said["tier"] == str(mt.backend())
    assert said["blas"]
    assert said["cores"] >= 1
    assert processor() in said["machine"]


def test_the_record_follows_the_tier():
    with mt.backend("numpy"):
        assert circumstances()["tier"] == "numpy"
