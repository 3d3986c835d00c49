"""Figures depend only on what is drawn, and drawing them changes no setting of the user."""

import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from egm.report import plotting

mpl = pytest.importorskip("matplotlib")
OWN = {"font.size": 30, "svg.hashsalt": None, "svg.fonttype": "path", "lines.linewidth": 9, "image.origin": "lower"}


def drawn():
    return plotting.draw(lambda axis: axis.plot([1, 2], [3, 4], label="a line"), alt="a line")


def image():
    return plotting.picture(np.linspace(0, 1, 12).reshape(3, 1, 4), alt="three pixels")


@pytest.mark.parametrize("make", [drawn, image])
def test_settings_of_the_user_stay_and_have_no_influence(make, monkeypatch):
    plain = make()
    with mpl.rc_context(OWN):
        before = dict(mpl.rcParams)
        assert make() == plain
        assert dict(mpl.rcParams) == before
        monkeypatch.setattr(plotting, "plain_style", lambda more=None: nullcontext())
        assert make() != plain  # the user's settings would change the figure


def test_settings_come_back_after_an_error():
    before = dict(mpl.rcParams)
    with pytest.raises(ZeroDivisionError):
        plotting.draw(lambda axis: axis.plot([1 / 0]), alt="nothing")
    assert dict(mpl.rcParams) == before


def test_the_way_to_show_figures_is_not_chosen():
    """Runs in another process, because this one may have imported pyplot."""
    code = (
        "import sys\nfrom egm.report import plotting\n"
        "plotting.draw(lambda axis: axis.plot([1, 2]), alt='a line')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
