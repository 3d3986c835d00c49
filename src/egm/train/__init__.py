"""Training: the loop, its replay buffer, run directories and evaluation."""
