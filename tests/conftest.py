"""Settings for every test: workers run side by side (pytest-xdist), so each keeps to one thread and its own names."""

import os
import signal

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run as plain Python, which shows whether they are right
# A shell starts background jobs with interrupts ignored; tests of interrupts need Python's own handler there too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_names():
    """What a test registers is not there in the next."""
    from registries import kept  # not before TRITON_INTERPRET is set

    with kept():
        yield
