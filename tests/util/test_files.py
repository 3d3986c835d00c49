"""Atomic writes: files are replaced as a whole or left unchanged."""

import json
import math
import os

import pytest

from egm.util.files import replacing, write_json


def test_folders_are_made_and_files_replaced(tmp_path):
    file = tmp_path / "a" / "b.json"
    write_json(file, {"x": 1})
    with file.open() as reader:  # a reader of the old file reads it to the end
        write_json(file, [1, 2])
        assert json.load(reader) == {"x": 1}
    assert json.loads(file.read_text()) == [1, 2]
    assert os.listdir(file.parent) == ["b.json"]
    plain = tmp_path / "plain"
    plain.touch()
    assert file.stat().st_mode == plain.stat().st_mode


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "kept.json"
    write_json(file, 1)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(file, math.nan)

    def interrupted():
        with replacing(file) as stream:
            stream.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert json.loads(file.read_text()) == 1
    assert os.listdir(tmp_path) == ["kept.json"]
