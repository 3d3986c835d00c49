"""What a run says while it goes: lines at the right times, a bar that leaves the terminal as it was, or nothing."""

import io
import re
import sys
import time

import pytest
import rich.console

from egm.train.progress import Bar, Lines, Silent, describe, make_progress

ROW = {"step": 3, "seconds": 1.0, "sampler_loss": 0.25, "ess": 0.5}
SCORE = {"step": 3, "seconds": 1.0, "e_w1": 1.5, "e_w1_floor": 0.125}


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_describe_names_what_matters_in_a_fixed_order():
    row = {**SCORE, "energy_loss": 2.0, "learning_rate": 1e-3, **ROW, "m_w1": 9.0}
    assert describe(row) == "loss 0.25  energy loss 2  ESS 0.5  E-W1 1.5  floor 0.125"
    assert describe({"step": 1, "ess": 0.123456}) == "ESS 0.123"
    assert describe({}) == ""


# ---------------------------------------------------------------------- lines


def test_lines_appear_every_few_seconds(clock, capsys):
    lines = Lines()
    with lines:
        shown = []
        for second in range(1, 21):
            clock[0] = 100.0 + second
            lines.update(second / 40, {**ROW, "step": second})
            said = capsys.readouterr()
            assert said.out == ""
            shown += re.findall(r"step (\d+) ", said.err)
    assert shown == ["5", "10", "15", "20"]


def test_evaluations_and_the_end_are_always_shown(clock, capsys):
    lines = Lines()
    lines.update(0.1, ROW)
    assert capsys.readouterr().err == ""
    lines.update(0.1, SCORE)
    assert capsys.readouterr().err == "step 3 (10%)  E-W1 1.5  floor 0.125\n"
    lines.update(1.0, ROW)
    assert capsys.readouterr().err == "step 3 (100%)  loss 0.25  ESS 0.5\n"


def test_the_time_left_counts_what_this_process_has_done(clock, capsys):
    """A resumed run does not take credit for what was done before."""
    lines = Lines()
    lines.update(0.5, ROW)  # resumed half way
    clock[0] += 10
    lines.update(0.6, ROW)
    assert capsys.readouterr().err == "step 3 (60%, 40 s left)  loss 0.25  ESS 0.5\n"
    clock[0] += 30
    lines.update(0.9, ROW)
    assert "(90%, 10 s left)" in capsys.readouterr().err


def test_remarks_are_printed_at_once(clock, capsys):
    with Lines() as lines:
        lines.say("stopped at step 3: [bold]enough")
        assert capsys.readouterr().err == "stopped at step 3: [bold]enough\n"


# ---------------------------------------------------------------------- silence, and the choice


def test_silence(capsys):
    with make_progress(False) as silent:
        assert type(silent) is Silent
        silent.say("a remark")
        silent.update(0.5, {**ROW, **SCORE})
        silent.update(1.0, {**ROW, **SCORE})
    said = capsys.readouterr()
    assert said.out + said.err == ""


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
    assert type(make_progress(True)) is Lines
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert type(make_progress(True)) is Bar
    assert type(make_progress(False)) is Silent
    monkeypatch.setitem(sys.modules, "rich.console", None)  # not installed
    assert type(make_progress(True)) is Lines


# ---------------------------------------------------------------------- the bar

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal of 120 columns receives."""
    stream, plain = io.StringIO(), rich.console.Console

    def console(**options):
        assert options == {"stderr": True}
        return plain(file=stream, force_terminal=True, width=120, legacy_windows=False, _environ={})

    monkeypatch.setattr(rich.console, "Console", console)
    return stream


def test_the_bar_moves_and_keeps_the_last_evaluation_in_sight(terminal):
    with Bar() as bar:
        assert HIDE in terminal.getvalue()
        bar.update(0.25, ROW)
        bar.update(0.25, SCORE)
        bar.update(0.5, {**ROW, "sampler_loss": 0.125})
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    last = [line for line in re.split(r"[\r\n]", shown) if line.strip()][-1]
    assert "50%" in last
    assert "loss 0.125  ESS 0.5  E-W1 1.5  floor 0.125" in last
    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)


def test_remarks_stay_above_the_bar(terminal):
    with Bar() as bar:
        bar.update(0.25, ROW)
        bar.say("stopped at step 3: [bold]enough")
        bar.update(0.5, ROW)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = [line for line in re.split(r"[\r\n]", shown) if line.strip()]
    assert lines.count("stopped at step 3: [bold]enough") == 1  # brackets are text
    assert "50%" in lines[-1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_terminal_is_as_before_after_an_exception(terminal, error):
    bar = Bar()

    def run():
        with bar:
            bar.update(0.5, ROW)
            assert SHOW not in terminal.getvalue()
            raise error

    with pytest.raises(error):
        run()
    assert terminal.getvalue().rindex(SHOW) > terminal.getvalue().rindex(HIDE)
    assert terminal.getvalue().endswith(("\n", SHOW))
    before = terminal.getvalue()
    bar.update(0.9, ROW)
    assert "90%" not in terminal.getvalue()[len(before) :]
