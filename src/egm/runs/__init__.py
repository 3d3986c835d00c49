"""Runs on disk: the files of a run, and what is recorded of the machine and the code."""
