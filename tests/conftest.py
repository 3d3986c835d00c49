"""Settings for every test: workers run side by side (pytest-xdist), so each keeps to one thread and its own names."""

import os
import runpy
import signal
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run as plain Python, which shows whether they are right
# A shell starts background jobs with interrupts ignored; tests of interrupts need Python's own handler there too.
signal.signal(signal.SIGINT, signal.default_int_handler)
RAN = pytest.StashKey[set[str]]()  # examples that a test has run


@pytest.fixture(autouse=True)
def own_names():
    """Undoes what a test registers."""
    from support.registries import kept  # not before TRITON_INTERPRET is set

    with kept():
        yield


@pytest.fixture
def run_example(request):
    """Runs an example, as runpy does, in a test that is marked with its name."""
    ran = request.node.stash.setdefault(RAN, set())

    def run(name, **options):
        ran.add(name)
        return runpy.run_path(str(Path(__file__).parents[1] / "examples" / f"{name}.py"), **options)

    return run


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Fails a test that has not run exactly the examples of its marks, which `command_rules.py` reads."""
    result = yield
    ran, said = pyfuncitem.stash.get(RAN, set()), {mark.args[0] for mark in pyfuncitem.iter_markers("example")}
    assert ran == said, f"examples that ran: {sorted(ran)}; those that the test is marked with: {sorted(said)}"
    return result
