"""Runs on disk: the files of a run, and the recorded versions and hardware."""
