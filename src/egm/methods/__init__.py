"""Methods: EGM, EGM-BS and EGM-SP, and how a method is registered."""

from egm.methods import egm, self_proposal
from egm.methods.registry import register_method
from egm.methods.trained import Trained
from egm.train.method import Method

__all__ = ["Method", "Trained", "egm", "register_method", "self_proposal"]
