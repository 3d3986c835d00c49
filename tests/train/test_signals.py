"""Interrupts: held back to the end of a step, then delivered; a second one at once; handlers put back."""

import signal
import threading

import pytest

import egm
from egm.train.signals import Stopped, held_back, stop_on_signals
from egm.train.trainer import Trainer
from support.training import SMALL, SPACES, state_of

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def caught():
    """Handlers that note the signal and go on."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in SIGNALS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_interrupt_waits_until_it_is_delivered():
    done = []

    def run():
        with held_back() as deliver:
            deliver()
            signal.raise_signal(signal.SIGINT)
            done.append("the rest of the step")
            deliver()
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["the rest of the step"]


def test_an_interrupt_is_delivered_at_the_end_at_the_latest():
    done = []

    def run():
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["all"]


def test_a_second_interrupt_goes_through_at_once():
    done = []

    def run():
        with held_back():
            signal.raise_signal(signal.SIGINT)
            done.append("one")
            signal.raise_signal(signal.SIGINT)
            done.append("never")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert done == ["one"]


def test_each_signal_is_delivered_once_to_its_own_handler(caught):
    with held_back() as deliver:
        signal.raise_signal(signal.SIGTERM)
        assert caught == []
        deliver()
        deliver()
        assert caught == [signal.SIGTERM]
        signal.raise_signal(signal.SIGINT)
        assert caught == [signal.SIGTERM]
        deliver()
    assert caught == [signal.SIGTERM, signal.SIGINT]


def test_a_second_signal_that_does_not_stop_anything(caught):
    with held_back() as deliver:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert caught == [signal.SIGTERM]
        deliver()
    assert caught == [signal.SIGTERM, signal.SIGINT]


def test_nothing_happens_without_an_interrupt(caught):
    with held_back() as deliver:
        deliver()
    assert caught == []


def test_an_exception_passes_and_handlers_are_put_back():
    with pytest.raises(ValueError, match="mine"), held_back():
        raise ValueError("mine")


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_become_one_exception_with_the_number(number):
    with pytest.raises(Stopped, match=signal.Signals(number).name) as stopped, stop_on_signals():
        signal.raise_signal(number)
    assert stopped.value.signal == number
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_both_together_stop_at_the_boundary():
    done = []

    def run():
        with stop_on_signals(), held_back() as deliver:
            signal.raise_signal(signal.SIGTERM)
            done.append("the rest of the step")
            deliver()

    with pytest.raises(Stopped) as stopped:
        run()
    assert stopped.value.signal == signal.SIGTERM
    assert done == ["the rest of the step"]


def test_signals_that_nobody_handles_are_left_alone():
    """SIGTERM's default ends the process, as it does without us; ignored signals stay ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("context", [held_back, stop_on_signals])
def test_worker_threads_are_left_alone(context):
    """Python sets handlers in the main thread only: elsewhere these contexts do nothing."""
    before = [signal.getsignal(number) for number in SIGNALS]
    inside, errors = [], []

    def work():
        try:
            with context() as deliver:
                inside.extend(signal.getsignal(number) for number in SIGNALS)
                if deliver is not None:
                    deliver()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert inside == before


# ---------------------------------------------------------------------- whether a run was saved


def signal_in_step(monkeypatch, step, *numbers):
    """Send these signals in the middle of a gradient step, counted from one."""
    plain = Trainer.gradient_step

    def gradient_step(self):
        if self.step + 1 == step:
            for number in numbers:
                signal.raise_signal(number)
        return plain(self)

    monkeypatch.setattr(Trainer, "gradient_step", gradient_step)


def stopped_run(out):
    with pytest.raises(Stopped) as stopped, stop_on_signals():
        egm.fit(SPACES["mixed"](), "egm", steps=20, out=out, **SMALL)
    return stopped.value


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_run_in_a_folder_is_saved_and_says_so(tmp_path, monkeypatch, number):
    signal_in_step(monkeypatch, 3, number)
    stopped = stopped_run(tmp_path)
    assert (stopped.signal, stopped.saved) == (number, True)
    assert state_of(tmp_path)["step"] == 3


def test_a_stopped_run_without_a_folder_is_not_saved(monkeypatch):
    signal_in_step(monkeypatch, 3, signal.SIGTERM)
    assert stopped_run(None).saved is False


def test_a_run_torn_in_a_step_is_not_saved(tmp_path, monkeypatch):
    """A second signal goes through at once; the last checkpoint, of step 10, stays."""
    signal_in_step(monkeypatch, 13, signal.SIGINT, signal.SIGTERM)
    stopped = stopped_run(tmp_path)
    assert (stopped.signal, stopped.saved) == (signal.SIGTERM, False)
    assert state_of(tmp_path)["step"] == 10
