"""Logs of episodes in files: good ones round-trip bit for bit, bad ones get one clear error that names the row."""

import csv
import importlib.util
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.logs import COVER, GRAPH, WORLD, along_cover, random_paths, record

from s2r_torch.base import ProblemSpec
from s2r_torch.deployment.recording.episodes import Recording
from s2r_torch.deployment.recording.files import read_recording, write_recording, write_template
from s2r_torch.deployment.recording.tables import read_table
from s2r_torch.errors import RecordingError, SettingError

SPEC = ProblemSpec(2, 3, 2, 2, (0.0, 0.0), (4.0, 8.0), ("row", "column"))
PARQUET = importlib.util.find_spec("pyarrow") is not None
FORMATS = ["csv", "npz", pytest.param("parquet", marks=pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra"))]
GOOD = """episode,step,action,row,column
a,0,1,0.5,1.5
a,1,0,1.5,2.5
a,2,,2.5,3.5
b,0,0,0.6,1.6
b,1,1,1.6,2.6
b,2,1,2.6,3.6
"""


def log(tmp_path, text=GOOD, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def changed(line, new):
    """GOOD with a line (counted from 1, the header) replaced; None leaves it out."""
    lines = GOOD.splitlines()
    lines[line - 1 : line] = [] if new is None else [new] if isinstance(new, str) else new
    return "\n".join(lines) + "\n"


def test_a_good_log(tmp_path):
    recording = read_recording(log(tmp_path), SPEC)
    assert recording.actions.tolist() == [[1, 0], [0, 1]] and recording.length.tolist() == [3, 3]
    assert recording.x.tolist() == [[[0.5, 1.5], [1.5, 2.5], [2.5, 3.5]], [[0.6, 1.6], [1.6, 2.6], [2.6, 3.6]]]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("short", [False, True])
def test_round_trip_is_bit_for_bit(tmp_path, ending, short):
    recording = record(random_paths(30))
    if short:
        length = torch.arange(30) % 4 + 1
        recording = Recording(recording.actions, recording.x, length)
    path = tmp_path / f"log.{ending}"
    write_recording(path, recording, WORLD.spec)
    again = read_recording(path, WORLD.spec, short_episodes=short)
    assert torch.equal(again.states(GRAPH), recording.states(GRAPH)) and torch.equal(again.length, recording.length)
    seen = torch.arange(4) < recording.length[:, None]
    assert torch.equal(again.x[seen], recording.x[seen])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_template_is_filled_in_and_read_back(tmp_path, ending):
    path = tmp_path / f"plan.{ending}"
    write_template(path, [(COVER[0], 2), (COVER[1], 3)], WORLD.spec)
    with pytest.raises(RecordingError, match="a template that was not filled in"):
        read_recording(path, WORLD.spec)
    table = read_table(path)
    assert len(table) == 5 * 4 and table.numbers("action")[:3].tolist() == list(COVER[0])
    if ending == "csv":
        lines = list(csv.reader(path.read_text().splitlines()))
        for row in lines[1 : 1 + 3 * 4]:  # three of five episodes were run
            row[3] = "1.25"
        path.write_text("\n".join(",".join(row) for row in lines) + "\n")
        recording = read_recording(path, WORLD.spec)
        assert recording.actions.tolist() == [list(COVER[0])] * 2 + [list(COVER[1])]


def test_columns_are_known_by_name_and_others_are_not_looked_at(tmp_path):
    text = "reward,column,time,action,row,step,episode\n"
    text += "oops,1.5,12:00,1,0.5,0,7\noops,2.5,12:01,0,1.5,1,7\noops,3.5,12:02,,2.5,2,7\n"
    recording = read_recording(log(tmp_path, text), SPEC)
    assert recording.x.tolist() == [[[0.5, 1.5], [1.5, 2.5], [2.5, 3.5]]]


def test_a_cell_of_any_length_in_another_column(tmp_path):
    lines = GOOD.splitlines()
    text = "\n".join([lines[0] + ",image", lines[1] + "," + "x" * 200_000, *(line + "," for line in lines[2:])]) + "\n"
    limit = csv.field_size_limit(5)  # as another library may have left it
    try:
        found = read_recording(log(tmp_path, text), SPEC)
        assert csv.field_size_limit() == 5
    finally:
        csv.field_size_limit(limit)
    assert torch.equal(found.x, read_recording(log(tmp_path), SPEC).x)


def test_what_spreadsheets_and_data_frames_do(tmp_path):
    plain = read_recording(log(tmp_path), SPEC)
    for text in (
        "\ufeff" + GOOD,  # a byte order mark
        GOOD.replace("\n", "\r\n"),
        "sep=,\n" + GOOD,
        GOOD + "\n\n,,,,\n",
        GOOD.replace(",0,1,", ",0.0,1.0,"),  # integers that became floats
        GOOD.replace("row,column", " row , column "),
        GOOD.replace("row,column", "x_1,x_2"),
        GOOD.replace("a,", '"robot 7, first",'),
        GOOD.encode("utf-16"),
        GOOD.replace("\n", ",,\n"),  # columns without a name
        GOOD.replace("column\n", "column,,\n"),
        GOOD.replace("\n", ",21.5\n")
        .replace("column,21.5", "column,Temp (\udcb0C)")
        .encode("utf-8", "surrogateescape"),
        GOOD.replace("\n", ",7,8\n").replace("column,7,8", "column,note,note"),  # of which nobody reads either
        GOOD.replace("1.5", "1.5\u00a0").replace("2.6", "\u20092.6\u202f"),
    ):
        again = read_recording(log(tmp_path, text), SPEC)
        assert torch.equal(again.x, plain.x) and torch.equal(again.actions, plain.actions)


BAD = {
    "empty file": ("", "an empty file"),
    "blank file": ("\n\n", "blank lines only"),
    "header only": ("episode,step,action,row,column\n", "a header only"),
    "missing column": (GOOD.replace(",column", ",col"), r"\(missing: column\)"),
    "no header": (GOOD.split("\n", 1)[1], "a header that is missing"),
    "column twice": (GOOD.replace("row,column", "row,row"), "'row' twice"),
    "wrong d, one too few": (
        "episode,step,action,x_1\na,0,1,0.5\na,1,1,0.5\na,2,1,0.5\n",
        r"\(missing: x_2\)",
    ),
    "wrong d, one too many": (
        "episode,step,action,x_1,x_2,x_3\na,0,1,1,1,1\na,1,1,1,1,1\na,2,1,1,1,1\n",
        "another dimension",
    ),
    "semicolons": (GOOD.replace(",", ";"), "separates by semicolons"),
    "semicolons and quotes": ('"' + GOOD.strip().replace(",", '";"').replace("\n", '"\n"') + '"\n', "by semicolons"),
    "decimal comma": (GOOD.replace("1.5,2.5", '"1,5",2.5'), "column 'row' at line 3; got '1,5'.*decimal comma"),
    "text": (changed(4, "a,2,,2.5,off"), "a number in column 'column' at line 4; got 'off'"),
    "step not an integer": (changed(3, "a,1.5,0,1.5,2.5"), "an integer step in 0 .. 2 at line 3; got 1.5"),
    "step is a word": (changed(3, "a,one,0,1.5,2.5"), "column 'step' at line 3; got 'one'"),
    "no step": (changed(3, "a,,0,1.5,2.5"), "a step at line 3"),
    "step too large": (changed(4, "a,3,0,1.5,2.5"), "an integer step in 0 .. 2 at line 4; got 3.*counted from 1"),
    "steps from 1": (GOOD.replace(",2,", ",3,").replace(",1,", ",2,"), "0 .. 2 at line 4; got 3.*counted from 1"),
    "step skipped": (changed(3, None), "step 1 of episode a at line 3; got step 2.*steps were skipped"),
    "first step missing": (changed(2, None), "episode a to begin with step 0; got step 1 at line 2"),
    "row twice": (changed(3, ["a,1,0,1.5,2.5"] * 2), "step 2 of episode a at line 4; got step 1.*a duplicated row"),
    "episode twice": (GOOD + "a,0,1,0.5,1.5\n", "step 0 at line 8, after other episodes.*a duplicate of line 2"),
    "mixed order": (
        "episode,step,action,row,column\na,0,1,1,1\nb,0,1,1,1\na,1,1,1,1\nb,1,1,1,1\na,2,,1,1\nb,2,,1,1\n",
        "all rows of episode a together.*step 1 at line 4.*mixed order",
    ),
    "steps backwards": (changed(3, ["a,2,0,1.5,2.5", "a,1,0,1.5,2.5"]), "step 1 of episode a at line 3; got step 2"),
    "one name for all": (GOOD.replace("b,", "a,"), "at line 5; got step 0.*two episodes of one name"),
    "no name": (changed(3, ",1,0,1.5,2.5"), "column 'episode' at line 3; got nothing"),
    "NaN": (changed(3, "a,1,0,nan,2.5"), "a finite reading in column 'row' at line 3; got nan"),
    "no reading": (changed(3, "a,1,0,,2.5"), "a finite reading in column 'row' at line 3"),
    "infinite": (changed(6, "b,1,1,1.6,inf"), "column 'column' at line 6; got inf"),
    "action out of range": (changed(3, "a,1,2,1.5,2.5"), "an action in 0 .. 1 at line 3; got 2"),
    "action from 1 to A": (GOOD.replace("a,0,1", "a,0,2"), "an action in 0 .. 1 at line 2; got 2.*counted from 1"),
    "action half": (changed(3, "a,1,0.5,1.5,2.5"), "an action in 0 .. 1 at line 3; got 0.5"),
    "action almost whole": (changed(3, "a,1,0.9999999,1.5,2.5"), "an action in 0 .. 1 at line 3; got 0.9999999;"),
    "action missing": (changed(3, "a,1,,1.5,2.5"), "the action taken after the reading at line 3; got nothing"),
    "cut in a row": (GOOD[:-6], "a line break at the end of line 7.*cut short"),
    "cut in the last number": (GOOD[:-2], "a line break at the end of line 7.*cut short"),
    "a row cut": (changed(7, "b,2,1,2.6"), "5 columns at line 7; got 4.*cut short"),
    "cut between rows": (changed(7, None), "3 steps in every episode; got 2 in one that ends at line 6.*cut short"),
    "interrupted": (changed(4, None), "got 2 in one that ends at line 3.*short_episodes=true"),
    "stray comma": (changed(3, "a,1,0,1.5,2.5,"), "5 columns at line 3; got 6.*a stray comma"),
    "millimetres": (
        GOOD.replace(".5,", "500,").replace(".6,", "600,"),
        "'row' in 0 .. 4; got 100% .* outside, the first 500 at line 2",
    ),
    "underscore": (changed(3, "a,1,0,1_5,2.5"), "column 'row' at line 3; got '1_5'.*an underscore among digits"),
    "full-width digits": (changed(3, "a,1,0,\uff11.\uff15,2.5"), "'row' at line 3.*digits of another script: U\\+FF11"),
    "action with an underscore": (changed(3, "a,1,0_1,1.5,2.5"), "column 'action' at line 3; got '0_1'"),
    "unicode minus": (changed(3, "a,1,0,\u22121.5,2.5"), r"'row' at line 3.*U\+2212, minus sign"),
    "thousands": (changed(3, 'a,1,0,"1,500.5",2.5'), "line 3; got '1,500.5'.*a separator of thousands"),
    "hexadecimal": (changed(3, "a,1,0,0x1p3,2.5"), "column 'row' at line 3; got '0x1p3'"),
    "overflow": (changed(3, "a,1,0,1e999,2.5"), "a finite reading in column 'row' at line 3; got inf"),
    "Latin-1 in a reading": (
        GOOD.replace("2.6,3.6", "2.6,3.6\udcb0").encode("utf-8", "surrogateescape"),
        "line 7.*byte 0xb0",
    ),
    "comments first": (
        "# by eva\n" + GOOD,
        "names of the columns at line 1; got # by eva; .*comments before the header",
    ),
    "a comment at the end": (GOOD + "# end\n", "5 columns at line 8; got 1; likely cause: a comment among"),
    "joined with its header": (
        GOOD + GOOD.replace("a,", "c,").replace("b,", "d,"),
        "at line 8; got 'step'.*second header",
    ),
    "units under the header": (changed(2, ["-,-,-,m,m", "a,0,1,0.5,1.5"]), "at line 2; got '-'.*line of units under"),
    "units alone": (changed(2, [",,,[m],[m]", "a,0,1,0.5,1.5"]), "'episode' at line 2; got nothing; .*line of units"),
    "a word for no value": (changed(4, "a,2,N/A,2.5,3.5"), "'action' at line 4; got 'N/A'; .*a word for no value"),
    "zeros at the end": (GOOD.encode() + bytes(512), "NUL bytes from line 8 on.*power cut"),
    "zeros in the middle": (GOOD.encode()[:60] + bytes(20) + GOOD.encode()[80:], "NUL bytes from line 4 on"),
    "UTF-16 with tabs": (GOOD.replace(",", "\t").encode("utf-16"), "in UTF-16 at line 1; .*tabs"),
    "UTF-16 without a mark": (GOOD.encode("utf-16-le"), "UTF-16 without a byte order mark"),
    "UTF-16 cut": (GOOD.encode("utf-16")[:-1], "UTF-16 that breaks off"),
    "open quote": (GOOD.replace("b,0", '"b,0'), "unexpected end of data at line 5 in.*a quotation mark"),
    "trailing separators": (
        GOOD.replace("\n", ",\n").replace("column,", "column"),
        "got 6; .*a stray comma at the end",
    ),
    "a spreadsheet": (b"PK\x03\x04" + bytes(50), "a zip archive, such as a spreadsheet"),
    "a web page": ("<!doctype html><p>not found", "a web page"),
    "Git LFS": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "not text": (b"\x00\x01\xff\xfe" * 40, "a readable .csv file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_logs_are_one_clear_error(tmp_path, kind):
    text, message = BAD[kind]
    with pytest.raises(RecordingError, match=message) as caught:
        read_recording(log(tmp_path, text), SPEC)
    assert "likely cause" in str(caught.value) and "\n" not in str(caught.value)


def test_an_end_of_the_range_in_float32_is_the_end(tmp_path):
    """What a driver clips is in its range."""
    spec = replace(SPEC, low=(-1.1, 0.0), high=(4.0, 3.1))
    x = read_recording(log(tmp_path, GOOD.replace("a,1,0,1.5,2.5", f"a,1,0,{float(np.float32(-1.1))!r},3.1")), spec).x
    assert x[0, 1].tolist() == [-1.1, 3.1]
    beyond = float(np.nextafter(np.float32(-1.1), np.float32(-2)))
    x = read_recording(log(tmp_path, GOOD.replace("a,1,0,1.5,2.5", f"a,1,0,{beyond!r},2.5")), spec).x
    assert float(x[0, 1, 0]) == beyond


def test_short_episodes_where_they_are_wanted(tmp_path):
    text = changed(4, None).replace("b,2,1,2.6,3.6", "b,2,1,,")
    recording = read_recording(log(tmp_path, text), SPEC, short_episodes=True)
    assert recording.length.tolist() == [2, 2] and recording.actions[:, 0].tolist() == [1, 0]
    with pytest.raises(RecordingError, match="at line 3"):  # a hole is no end
        read_recording(log(tmp_path, changed(3, "a,1,0,,")), SPEC, short_episodes=True)


def columns(**change):
    names = GOOD.split("\n", 1)[0].split(",")
    rows = [line.split(",") for line in GOOD.split("\n")[1:-1]]
    table = {name: np.asarray(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    for name in ("step", "row", "column"):
        table[name] = table[name].astype(float)
    table["action"] = np.where(table["action"] == "", "nan", table["action"]).astype(float)
    return table | change


def test_npz_logs(tmp_path):
    np.savez(tmp_path / "log.npz", **columns())
    assert torch.equal(read_recording(tmp_path / "log.npz", SPEC).x, read_recording(log(tmp_path), SPEC).x)
    for change, message in (
        ({"row": np.zeros((6, 2))}, r"column 'row'.*shape \[6, 2\]"),
        ({"row": np.zeros(5)}, "columns of one length"),
        ({"row": np.asarray(0.5)}, r"one number per row in column 'row'.*shape \[\]"),
        ({"step": np.asarray(1.0)}, "one number per row|columns of one length"),
        ({"action": np.asarray([0, 1, -1, 0, 1, -1])}, "got -1; likely cause: a number that stands for none"),
        ({"step": np.asarray([0, 1, 2, 0, 2, 2.0])}, "step 1 of episode b at row 5; got step 2"),
    ):
        np.savez(tmp_path / "log.npz", **columns(**change))
        with pytest.raises(RecordingError, match=message):
            read_recording(tmp_path / "log.npz", SPEC)


@pytest.mark.parametrize(
    "extra",
    [
        {"info": np.asarray([{}] * 6, dtype=object)},
        {"images": np.zeros((6, 2, 2))},
        {"fps": np.asarray(30)},
        {"ends": np.arange(2)},
        {"row": np.asarray([[0.5], [1.5], [2.5], [0.6], [1.6], [2.6]])},
    ],
)
def test_other_arrays_of_an_archive_are_not_looked_at(tmp_path, extra):
    np.savez(tmp_path / "log.npz", **columns(**extra))
    assert torch.equal(read_recording(tmp_path / "log.npz", SPEC).x, read_recording(log(tmp_path), SPEC).x)


def test_images_whose_first_axis_runs_fastest(tmp_path):
    spec = replace(SPEC, obs_dim=6, low=(-9.0,) * 6, high=(99.0,) * 6, obs_names=tuple("abcdef"))
    images = np.arange(36.0).reshape(6, 2, 3)
    keys = {name: values for name, values in columns().items() if name not in ("row", "column")}
    for x in (images, np.asfortranarray(images)):
        np.savez(tmp_path / "log.npz", **keys, x=x)
        assert read_recording(tmp_path / "log.npz", spec).x.flatten().tolist() == list(range(36))


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"ARROW1\0\0", "an Arrow"),
        (b"MATLAB 5.0 MAT-file", "a MATLAB file"),
        (b"\x80\x04\x95", "a pickle"),
        (b"PK\x03\x04\0\0\x08\x08", "torch.save"),
    ],
)
@pytest.mark.parametrize("ending", FORMATS[1:])
def test_files_of_other_programs_are_named(tmp_path, ending, start, what):
    (tmp_path / f"log.{ending}").write_bytes(start + bytes(200))
    with pytest.raises(RecordingError, match=what):
        read_recording(tmp_path / f"log.{ending}", SPEC)


def archive(path, change=lambda name, data: data, **settings):
    np.savez(path.with_suffix(".good.npz"), **columns())
    with zipfile.ZipFile(path.with_suffix(".good.npz")) as good, zipfile.ZipFile(path, "w", **settings) as changed:
        for name in good.namelist():
            changed.writestr(name, change(name, good.read(name)))


def test_archives_of_other_kinds_and_damaged_ones(tmp_path):
    path = tmp_path / "log.npz"
    for column, what in (
        (np.arange(6).astype("datetime64[s]"), "times"),
        (np.zeros(6) + 0j, "complex"),
        (np.zeros(6, bool), "truth"),
    ):
        np.savez(path, **columns(row=column))
        with pytest.raises(RecordingError, match=f"a number in column 'row' at row 1; .*{what}"):
            read_recording(path, SPEC)
    np.save(tmp_path / "log.npy", np.zeros((6, 5)))
    (tmp_path / "log.npy").rename(path)
    with pytest.raises(RecordingError, match="one array, not an archive of columns"):
        read_recording(path, SPEC)
    archive(path, compression=zipfile.ZIP_BZIP2)
    assert len(read_recording(path, SPEC)) == 2
    archive(path, lambda name, data: data.replace(b"(6,), }" + 15 * b" ", b"(1000000000000000,), }"))
    with pytest.raises(RecordingError, match="48 bytes for 8000000000000000 declared ones"):
        read_recording(path, SPEC)
    for header, what in (  # of other writers: a later format, and shapes that are no tuple of plain numbers
        (lambda data: data.replace(b"NUMPY\x01", b"NUMPY\x03"), r"format \(3, 0\)"),
        (lambda data: data.replace(b"(6,), }" + 10 * b" ", b"(np.int64(6),), }"), ""),
        (lambda data: data.replace(b"(6,), }", b"6, }   "), "shape is not valid: 6"),
    ):
        archive(path, lambda name, data, header=header: header(data) if name == "row.npy" else data)
        with pytest.raises(RecordingError, match=f"{what}.* in column 'row' in .*log.npz"):
            read_recording(path, SPEC)
    archive(path)
    data = bytearray(path.read_bytes())
    data[6] |= 1  # of the first member: encrypted
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="encrypted"):
        read_recording(path, SPEC)


@pytest.mark.parametrize("ending", FORMATS[1:])
def test_no_flipped_bit_of_ours_is_another_reading(tmp_path, ending):
    """Every bit of the file in turn: an error, or the same numbers."""
    recording, path = record(random_paths(2)), tmp_path / f"log.{ending}"
    write_recording(path, recording, WORLD.spec)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for place in rng.choice(len(data), min(len(data), 250), replace=False).tolist():
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :])
        try:
            again = read_recording(path, WORLD.spec)
        except RecordingError as error:
            assert "\n" not in str(error)
            continue
        assert torch.equal(again.x, recording.x) and torch.equal(again.actions, recording.actions), place


@pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra")
def test_a_damaged_column_of_parquet_is_named(tmp_path):
    path = tmp_path / "log.parquet"
    write_recording(path, record(random_paths(30)), WORLD.spec)
    from pyarrow import parquet

    group = parquet.ParquetFile(path).metadata.row_group(0)
    column = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "x_1")
    data = bytearray(path.read_bytes())
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match="in column 'x_1' in .*log.parquet"):
        read_recording(path, WORLD.spec)


@pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra")
def test_parquet_lists_of_one_number(tmp_path):
    import pyarrow
    from pyarrow import parquet

    def write(**change):
        given = {name: pyarrow.array(column, from_pandas=True) for name, column in columns().items()} | change
        parquet.write_table(pyarrow.table(given), tmp_path / "log.parquet")

    ones = {name: pyarrow.array([[v] for v in columns()[name].tolist()]) for name in ("row", "column")}
    for change in (ones, {"row": ones["row"]}, {"action": pyarrow.array([[1], [0], None, [0], [1], [1]])}):
        write(**change)
        assert torch.equal(read_recording(tmp_path / "log.parquet", SPEC).x, read_recording(log(tmp_path), SPEC).x)
    write(row=pyarrow.array([[0.5]] * 5 + [[1.0, 2.0]]))
    with pytest.raises(RecordingError, match="'row' at row 6; .*several numbers in one cell"):
        read_recording(tmp_path / "log.parquet", SPEC)


@pytest.mark.skipif(not PARQUET, reason="pyarrow is an extra")
@pytest.mark.parametrize("last, got", [(None, "nothing"), ([1.0], r"one of shape \[1\]")])
def test_parquet_arrays_of_several_shapes_are_named_by_row(tmp_path, last, got):
    import pyarrow
    from pyarrow import parquet

    given = columns()
    x = [list(pair) for pair in zip(given.pop("row").tolist(), given.pop("column").tolist(), strict=True)]
    for cells in (x, x[:-1] + [last]):
        table = {name: pyarrow.array(column, from_pandas=True) for name, column in given.items()}
        parquet.write_table(pyarrow.table(table | {"x": cells}), tmp_path / "log.parquet")
        if cells is x:
            assert torch.equal(read_recording(tmp_path / "log.parquet", SPEC).x, read_recording(log(tmp_path), SPEC).x)
    with pytest.raises(RecordingError, match=f"2 numbers in column 'x' at row 6; got {got}"):
        read_recording(tmp_path / "log.parquet", SPEC)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(RecordingError, match="got a folder"):
        read_recording(tmp_path / "log.csv", SPEC)
    with pytest.raises(RecordingError, match="something that is not a file"):
        (tmp_path / "null.csv").symlink_to("/dev/null")
        read_recording(tmp_path / "null.csv", SPEC)


def test_a_template_is_never_written_over_what_is_there(tmp_path):
    path, plan = tmp_path / "plan.csv", [(COVER[0], 2)]
    write_template(path, plan, WORLD.spec)
    write_template(path, plan, WORLD.spec)  # an empty form
    lines = path.read_text().splitlines()
    for text, message in (
        (
            "\n".join([lines[0], *(line + "1.25" for line in lines[1:5]), *lines[5:]]) + "\n",
            "plan.csv holds 1 episodes",
        ),
        (path.read_text().replace("\n", ",\n").replace("x_1,", "x_1,who"), "plan.csv holds columns who"),
        ("a,b\n1,2\n", "another file"),
        ("", "another file"),
    ):
        path.write_text(text)
        with pytest.raises(RecordingError, match=message):
            write_template(path, plan, WORLD.spec)
        assert path.read_text() == text


def test_nothing_in_an_npz_file_is_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'sprung')!r}, 'w')",)

    np.savez(tmp_path / "log.npz", **columns(row=np.asarray([Trap()] * 6, dtype=object)))
    with pytest.raises(RecordingError, match="a readable .npz file"):
        read_recording(tmp_path / "log.npz", SPEC)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("ending", FORMATS)
def test_cut_files(tmp_path, ending):
    path = tmp_path / f"log.{ending}"
    write_recording(path, along_cover(5), WORLD.spec)
    data = path.read_bytes()
    for share in (0.0, 0.3, 0.9):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(RecordingError):
            read_recording(path, WORLD.spec)


def test_other_files(tmp_path):
    with pytest.raises(RecordingError, match="no file"):
        read_recording(tmp_path / "log.csv", SPEC)
    with pytest.raises(SettingError, match="ends in .csv, .npz, .parquet"):
        read_recording(tmp_path / "log.doc", SPEC)
    for name, cause in (("a.csv.gz", "unpack it"), ("a.xlsx", "export it as CSV"), ("a.csv ", "a blank behind")):
        with pytest.raises(SettingError, match=cause):
            read_recording(tmp_path / name, SPEC)


@pytest.mark.skipif(PARQUET, reason="pyarrow is there")
def test_parquet_without_pyarrow(tmp_path):
    with pytest.raises(SettingError, match=r"pip install 's2r_torch\[parquet\]'"):
        read_recording(log(tmp_path, b"PAR1", "log.parquet"), SPEC)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "log.csv"
    write_recording(path, along_cover(2), WORLD.spec)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_recording(path, along_cover(3), WORLD.spec)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["log.csv"]
