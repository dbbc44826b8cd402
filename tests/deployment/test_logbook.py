"""Logs of live worlds: durable, held by one process, gone on from as they are, or refused."""

import csv
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.logs import COVER, GRAPH, WORLD, along_cover, random_paths, record

from s2r_torch.base import ProblemSpec
from s2r_torch.deployment.logbook import journal_of, ledger_of, looked_before, open_logbook, read_log
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import read_recording, write_recording, write_template
from s2r_torch.deployment.recording.tables import read_table, write_table
from s2r_torch.errors import FileError, RecordingError

ROOT = Path(__file__).resolve().parents[2]
PARQUET = importlib.util.find_spec("pyarrow") is not None
FORMATS = ["csv", "npz", pytest.param("parquet", marks=pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra"))]


def append(path, *parts):
    with open_logbook(path, WORLD.spec) as logbook:
        for part in parts:
            logbook.ledger.add("real", len(part))
            logbook.append(part)


def kept(path):
    return read_log(path, WORLD.spec, short_episodes=True, empty=True)


def same(one, other):
    seen = one.states(GRAPH) >= 0
    return torch.equal(one.states(GRAPH), other.states(GRAPH)) and torch.equal(one.x[seen], other.x[seen])


@pytest.mark.parametrize("ending", FORMATS)
def test_what_is_appended_is_read_back_bit_for_bit(tmp_path, ending):
    first, second = record(random_paths(7)), record(random_paths(9, 1), seed=1)
    short = Recording(second.actions, second.x, torch.arange(9) % 4 + 1)
    path = tmp_path / f"real.{ending}"
    append(path, first)
    append(path, short, first)
    assert same(kept(path), Recording.joined([first, short, first]))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, ledger_of(path).name]


# -- a kill at any moment ---------------------------------------------------------------------------------------------

KILLED = """
import sys, torch
sys.path.insert(0, "tests")
from support.logs import WORLD, COVER, record
from s2r_torch.deployment.logbook import open_logbook
with open_logbook(sys.argv[1], WORLD.spec) as logbook:
    for i in range(10**6):
        logbook.ledger.add("real", 1)
        print(i, flush=True)  # a draw
        logbook.append(record([COVER[0]], seed=i))
"""


@pytest.mark.parametrize("ending", FORMATS)
def test_a_kill_costs_the_episode_that_was_running(tmp_path, ending):
    path = tmp_path / f"real.{ending}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    for _ in range(12):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    drawn = 12 + len(process.communicate()[0].splitlines())
    recording = kept(path)
    assert drawn - 1 <= len(recording) <= drawn
    assert torch.equal(recording.x[:3], torch.cat([record([COVER[0]], seed=i).x for i in range(3)]))
    append(path, record([COVER[1]]))
    assert len(read_recording(path, WORLD.spec)) == len(recording) + 1
    with open_logbook(path, WORLD.spec) as logbook:
        assert drawn + 1 <= logbook.ledger.counts["real"] <= drawn + 2  # never less than was drawn


@pytest.mark.parametrize("tail", [b"7,0,1,0.1", bytes(512), b"7,0,1,0.1\n7,1,0," + bytes(100)])
def test_a_line_that_a_crash_cut_is_mended_and_told(tmp_path, tail):
    path = tmp_path / "real.csv"
    append(path, along_cover(2))
    ledger_of(path).write_text('{"real_episodes": 7, "status": "collecting"}')
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with open_logbook(path, WORLD.spec) as logbook:
        assert "was cut by a crash" in logbook.notes[0] and len(logbook.recording) >= 2 * len(COVER)
    assert path.read_bytes().startswith(whole) and path.read_bytes().endswith(b"\n") and b"\0" not in path.read_bytes()


def test_a_file_that_somebody_else_cut_is_not_mended(tmp_path):
    path = tmp_path / "real.csv"
    append(path, along_cover(2))
    ledger_of(path).write_text('{"real_episodes": 7, "status": "complete"}')
    path.write_bytes(path.read_bytes()[:-3])
    before = path.read_bytes()
    with pytest.raises(RecordingError, match="a line break at the end"), open_logbook(path, WORLD.spec):
        pass
    assert path.read_bytes() == before


def test_folding_twice_is_folding_once(tmp_path):
    """A crash between writing the file and removing its journal."""
    path = tmp_path / "real.npz"
    recording = along_cover(3)
    write_recording(path, recording, WORLD.spec)
    write_recording(journal_of(path), recording, WORLD.spec)
    assert len(kept(path)) == len(recording)
    append(path, record([COVER[0]]))
    assert len(read_recording(path, WORLD.spec)) == len(recording) + 1 and not journal_of(path).exists()


def test_a_full_disk_costs_what_was_not_written_and_says_so(tmp_path, monkeypatch):
    path, w = tmp_path / "real.csv", len(COVER)
    with open_logbook(path, WORLD.spec) as logbook:
        logbook.ledger.add("real", 2 * len(COVER))
        logbook.append(along_cover(2))
        before = path.read_bytes()
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(FileError, match=rf"No space .*; {w} unsaved episodes \(the {2 * w} before them are in"):
            logbook.append(along_cover(1))
        with pytest.raises(FileError, match="No space left on device"):
            logbook.ledger.add("real", 5)
        assert logbook.ledger.counts["real"] == 2 * w  # nothing may be drawn that was not counted
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_a_log_that_somebody_removes_is_said_to_be_gone(tmp_path):
    path, w = tmp_path / "real.csv", len(COVER)
    with open_logbook(path, WORLD.spec) as logbook:
        logbook.ledger.add("real", 2 * w)
        logbook.append(along_cover(1))
        path.unlink()
        with pytest.raises(FileError, match=rf"{w} unsaved episodes \(the {w} before them were in a file that is gone"):
            logbook.append(along_cover(1))


# -- one process at a time --------------------------------------------------------------------------------------------


def test_a_log_is_held_by_one(tmp_path):
    path = tmp_path / "real.csv"
    in_use = f"real.csv is in use by process {os.getpid()}"
    with open_logbook(path, WORLD.spec), pytest.raises(FileError, match=in_use):
        append(path, along_cover(1))
    append(path, along_cover(1))


# -- what is not ours stays -------------------------------------------------------------------------------------------


def users_log(path, line_break="\n"):
    """A log with labels, columns and an empty form of the user's own."""
    rows = [["episode", "operator", "step", "action", "x_1", "comment"]]
    recording = record(random_paths(3))
    for i, (actions, x) in enumerate(zip(recording.actions.tolist(), recording.x.tolist(), strict=True)):
        rows += [[f"mon-{i:02d}", "eva", h, (*actions, "")[h], x[h][0], "fine, so far"] for h in range(GRAPH.horizon)]
    rows += [["form", "", h, (*COVER[0], "")[h], "", ""] for h in range(GRAPH.horizon)]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator=line_break).writerows(rows)


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_columns_labels_and_forms_of_the_users_own_stay(tmp_path, line_break):
    path = tmp_path / "real.csv"
    users_log(path, line_break)
    before, new = path.read_bytes(), along_cover(2)
    append(path, new)
    after = path.read_bytes()
    assert after.startswith(before)
    assert after.count(b"\r") == after.count(b"\n") * (line_break == "\r\n")
    recording = kept(path)
    assert len(recording) == 3 + len(new) and torch.equal(recording.x[3:], new.x)


def test_a_form_that_was_begun_is_gone_on_with(tmp_path):
    path = tmp_path / "real.csv"
    write_template(path, [(COVER[0], 2)], WORLD.spec)
    append(path, along_cover(1))
    labels = [line.split(",")[0] for line in path.read_text().splitlines()]
    assert len(kept(path)) == len(COVER) and labels.count("0") == labels.count("2") == GRAPH.horizon


@pytest.mark.parametrize("ending", FORMATS[1:])
def test_what_a_format_would_lose_is_refused_before_the_first_episode(tmp_path, ending):
    path = tmp_path / f"real.{ending}"
    table = tmp_path / "users.csv"
    users_log(table)
    columns = read_table(table)
    text = {name: np.asarray(columns.source.load(name).tolist()) for name in ("episode", "operator", "comment")}
    write_table(path, text | {name: columns.numbers(name) for name in ("step", "action", "x_1")})
    before = path.read_bytes()
    with pytest.raises(
        RecordingError, match="would lose columns comment, operator; labels such as 'mon-00'; 1 episodes"
    ):
        append(path, along_cover(1))
    assert path.read_bytes() == before and not ledger_of(path).exists()


def test_another_encoding_is_refused(tmp_path):
    path = tmp_path / "real.csv"
    append(path, along_cover(1))
    path.write_bytes(path.read_text().encode("utf-16"))
    with pytest.raises(RecordingError, match="would lose its encoding, UTF-16"):
        append(path, along_cover(1))


def test_a_sequential_look_is_remembered(tmp_path):
    path = tmp_path / "real.csv"
    assert not looked_before(path)
    with open_logbook(path, WORLD.spec) as logbook:
        logbook.note(sequential=True)
        logbook.append(along_cover(1))
    append(path, along_cover(1))
    assert looked_before(path)


def test_odd_sensor_names_keep_their_numbers(tmp_path):
    names = ("x [m]", "a,b", "file", "temp °C", "allow_pickle", "x.y", "it's")
    spec = ProblemSpec(2, 4, 3, 7, (-9.0,) * 7, (9.0,) * 7, names)
    x = torch.randn(5, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recording = Recording(torch.zeros(5, 3, dtype=torch.int64), x, torch.full((5,), 4))
    for ending in ("csv", "npz", *(["parquet"] if PARQUET else [])):
        path = tmp_path / f"real.{ending}"
        with open_logbook(path, spec) as logbook:
            logbook.append(recording)
        assert torch.equal(read_recording(path, spec).x, recording.x), ending
