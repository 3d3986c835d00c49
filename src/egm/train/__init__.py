"""Training: the loop, its options and replay buffer, progress, and interrupts."""
