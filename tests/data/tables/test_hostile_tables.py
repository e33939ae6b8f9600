"""Tables that were made to do harm: they end in a sentence, in bounded memory."""

import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import openpyxl
import pytest

from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import DataError

SPACE = "http://schemas.openxmlformats.org/"
HEAD = '<?xml version="1.0"?>'
PARTS = {
    "[Content_Types].xml": f'{HEAD}<Types xmlns="{SPACE}package/2006/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/></Types>',
    "_rels/.rels": f'{HEAD}<Relationships xmlns="{SPACE}package/2006/relationships"><Relationship Id="rId1" '
    f'Type="{SPACE}officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'{HEAD}<workbook xmlns="{SPACE}spreadsheetml/2006/main" '
    f'xmlns:r="{SPACE}officeDocument/2006/relationships"><sheets><sheet name="S" sheetId="1" r:id="rId1"/></sheets>'
    "</workbook>",
    "xl/_rels/workbook.xml.rels": f'{HEAD}<Relationships xmlns="{SPACE}package/2006/relationships"><Relationship '
    f'Id="rId1" Type="{SPACE}officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/>'
    "</Relationships>",
}
SHEET = f'<worksheet xmlns="{SPACE}spreadsheetml/2006/main">%s<sheetData>%s</sheetData></worksheet>'
TABLE = '<row r="1"><c r="A1" t="inlineStr"><is><t>OT</t></is></c></row>' + "".join(
    f'<row r="{n}"><c r="A{n}"><v>{n}</v></c></row>' for n in range(2, 9)
)
FAR = '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'


def book(path: Path, *pieces: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in PARTS.items():
            archive.writestr(name, text)
        with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as file:
            for piece in (HEAD, *pieces):
                file.write(piece.encode())
    return path


def opened(path: Path) -> tuple[int, str]:
    """The exit code and the errors of reading a table in a process that may have 2 GB beyond its programs."""
    code = (
        "import sys; from cellerate.data.series.series import open_series; from cellerate.errors import DataError\n"
        "from cellerate.data.settings import Reading\n"
        "try: print(open_series(sys.argv[1], Reading(targets=['OT'], features=['OT'])).rows)\n"
        "except DataError as error: sys.exit(f'DataError: {error}')"
    )
    memory = 8 << 30
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
    )
    return done.returncode, done.stdout + done.stderr


def test_size_that_a_sheet_claims_takes_no_memory(tmp_path):
    path = book(tmp_path / "t.xlsx", SHEET % ('<dimension ref="A1:XFD1048576"/>', TABLE))
    assert opened(path) == (0, "7\n")


def test_a_cell_far_away_takes_no_memory(tmp_path):
    path = book(tmp_path / "t.xlsx", SHEET % ("", TABLE + FAR))
    code, told = opened(path)
    # The far row has no value of OT.
    assert code == 1 and told.startswith("DataError: ") and "OT" in told


def test_a_cell_of_a_gigabyte_is_refused_before_it_is_read(tmp_path):
    whole = SHEET % ("", TABLE.replace("OT", "%s"))
    begin, end = whole.split("%s")
    path = book(tmp_path / "t.xlsx", begin, *["a" * (1 << 20)] * 1100, end)
    code, told = opened(path)
    assert code == 1 and "becomes 1,1" in told


def test_entities_that_grow_are_refused(tmp_path):
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 20}">' for n in range(8))
    sheet = SHEET % ("", TABLE.replace("OT", "&e8;"))
    path = book(tmp_path / "t.xlsx", f'<!DOCTYPE w [<!ENTITY e0 "{"a" * 20}">{entities}]>', sheet)
    code, told = opened(path)
    assert code == 1 and "cannot be read as an Excel file" in told


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_a_damaged_book_is_an_error_of_the_data(tmp_path, place):
    path = tmp_path / "t.xlsx"
    made = openpyxl.Workbook()
    for row in (["OT"], *([n] for n in range(50))):
        made.active.append(row)
    made.save(path)
    whole = bytearray(path.read_bytes())
    at = int(len(whole) * place)
    whole[at : at + 200] = bytes(200)
    path.write_bytes(whole)
    with pytest.raises(DataError):
        open_series(path, Reading(targets=["OT"], features=["OT"]))


def test_columns_of_a_sheet_without_names_are_left_out_and_said(tmp_path):
    made = openpyxl.Workbook()
    for row in (["OT", None, None], [1, 2, 3], [2, 3, 4], [3, 4, 5]):
        made.active.append(row)
    made.save(tmp_path / "t.xlsx")
    found = open_series(tmp_path / "t.xlsx", Reading(targets=["OT"]))
    assert found.columns == ("OT",)


@pytest.mark.parametrize(
    "value", ["[" * 100_000 + "]" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000, "[" * 100_000]
)
def test_a_record_nested_too_deeply_is_an_error_and_no_end_of_the_process(tmp_path, value):
    path = tmp_path / "t.jsonl"
    path.write_text('{"OT": 1}\n\n{"OT": 2}\n{"OT": ' + value + "}\n")
    code, told = opened(path)
    assert code == 1
    assert "DataError: " in told and "data row 3: the record is nested more than 200 deep" in told


def test_brackets_in_texts_are_not_counted(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"OT": {n}, "note": "{"[" * 500}\\\\\\"{"{" * 500}"}}\n' for n in range(5)))
    assert open_series(path, Reading(targets=["OT"], features=["OT"])).rows == 5


def test_a_packed_series_described_too_deeply_is_damaged(tmp_path):
    (tmp_path / "t.csv").write_text("OT\n" + "\n".join(map(str, range(20))))
    pack_series(tmp_path / "t.csv", tmp_path / "t.series", Reading())
    (tmp_path / "t.series" / "series.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="damaged"):
        open_series(tmp_path / "t.series", Reading(targets=["OT"], features=["OT"]))


def test_four_times_the_columns_take_about_four_times_as_long(tmp_path):
    seconds = {}
    for columns in (500, 5000, 20_000):
        path = tmp_path / f"{columns}.csv"
        lines = [",".join(f"c{n}" for n in range(columns))]
        lines += [",".join(str(row + n % 7 + 0.5) for n in range(columns)) for row in range(6)]
        path.write_text("\n".join(lines))
        begin = time.monotonic()
        assert open_series(path, Reading(targets=["c0"])).values.shape == (6, columns)
        seconds[columns] = time.monotonic() - begin
    # What grew with the square of the columns made it twelve times.
    assert seconds[20_000] < 8 * seconds[5000]
