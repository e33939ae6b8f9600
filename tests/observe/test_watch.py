"""`cellerate watch`: what its page asks for, and the page itself in a real browser."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.report.browser import browser, fits, violations

__all__ = ["browser"]
PROGRAM = Path(sys.executable).with_name("cellerate")


def figures(step, now, **more):
    return {"time": now + step, "epoch": 1, "step": step, "loss": 2.0 / step, "items_per_s": 1e5, **more}


def write(folder, rows, mode="w"):
    folder.mkdir(exist_ok=True)
    with (folder / "telemetry.jsonl").open(mode) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def watched(tmp_path):
    """A folder with two runs, one of which has ended, and the address of its page."""
    now = time.time()
    write(tmp_path / "new.run", [figures(step, now - 10) for step in range(1, 9)])
    old = [figures(step, now - 900) for step in range(1, 5)]
    old.append({"time": now - 890, "epoch": 1, "step": 4, "epoch/val_loss": 0.25})
    old.append(
        {"time": now - 890, "epoch": 1, "step": 4, "sample": {"given": "It <b>was", "made": " late\n</b>"}}
    )
    write(tmp_path / "<b>old.run", [*old, {"time": now - 889, "status": "finished"}])
    server = subprocess.Popen(
        [PROGRAM, "watch", str(tmp_path), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        line = server.stderr.readline()
        yield re.search(r"http://\S+", line)[0]
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=30)
        assert (server.returncode, said) == (0, "")
    finally:
        server.kill()
        server.communicate()


def asked(address, path="/runs", **headers):
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers)) as answer:
        return json.load(answer)


def test_page_gets_what_is_new_of_each_run(watched, tmp_path):
    first = {run["name"]: run for run in asked(watched)["runs"]}
    assert {name: (run["status"], len(run["rows"])) for name, run in first.items()} == {
        "new": ("training", 8),
        "<b>old": ("finished", 6),
    }
    write(tmp_path / "new.run", [figures(9, time.time() - 10)], mode="a")
    write(tmp_path / "third.run", [figures(1, time.time())])
    known = f"/runs?new={first['new']['began']},{first['new']['end']}"
    again = {run["name"]: [row["step"] for row in run["rows"]] for run in asked(watched, known)["runs"]}
    assert again == {"new": [9], "<b>old": [1, 2, 3, 4, 4, 4], "third": [1]}
    assert len(asked(watched, "/runs?new=x,y")["runs"]) == 3
    with (tmp_path / "new.run" / "telemetry.jsonl").open("a") as file:
        file.write('{"time": 5.0, "epoch": 1, "step": 10, "loss": NaN}\n')
    (new,) = (run for run in asked(watched)["runs"] if run["name"] == "new")
    assert new["rows"][-1]["loss"] is None
    (tmp_path / "third.run" / "telemetry.jsonl").unlink()
    (tmp_path / "third.run" / "telemetry.jsonl").mkdir()  # cannot be read
    assert {run["name"]: run["status"] for run in asked(watched)["runs"]}["third"] == "silent"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        asked(watched, Host="elsewhere.example")


def test_run_that_was_removed_leaves_the_others(tmp_path):
    from cellerate.observe.watch import _runs

    for name in ("a", "b"):
        write(tmp_path / f"{name}.run", [figures(1, 0.0)])
    paths = [tmp_path / "a.run", tmp_path / "b.run"]
    request = types.SimpleNamespace(query_params={})
    for left in ({"a", "b"}, {"b"}):
        found = json.loads(_runs(paths, request).body)["runs"]
        assert {run["name"] for run in found} == left
        shutil.rmtree(tmp_path / "a.run", ignore_errors=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fd00::5"])
def test_page_may_be_asked_by_its_address(host):
    from cellerate.observe.watch import make_app

    (allowed,) = (one.kwargs["allowed_hosts"] for one in make_app([], host).user_middleware)
    assert (f"[{host}]" if ":" in host else host) in allowed


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing.run"], 3, "nothing.run is not a run"),
        (["--host", "256.0.0.1"], 6, "cannot listen on 256.0.0.1:8100"),
        (["--host", b"\xff"], 2, "--host must be an address of this machine or its name, not "),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path, words, code, said):
    done = subprocess.run(
        [PROGRAM, "watch", *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_page_shows_runs_as_they_go_on(browser, watched, tmp_path, width, scheme):
    from playwright.sync_api import expect

    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda each: None if each.url.startswith(watched) else said.append(each.url))
    page.goto(watched)
    expect(page.locator("#told")).to_have_text("1 of 2 training")
    rows = page.locator("#runs tr")
    expect(rows.filter(has_text="new")).to_contain_text("0.2500")
    expect(rows.filter(has_text="<b>old")).to_contain_text("finished")
    figure = page.locator("figure", has_text="Loss")
    label = figure.locator("svg")
    assert "new loss: 0.25" in label.get_attribute("aria-label")
    write(tmp_path / "new.run", [figures(10, time.time() - 10)], mode="a")
    expect(rows.filter(has_text="new")).to_contain_text("0.2000")
    assert label.get_attribute("aria-label").endswith("new loss: 0.2")
    assert page.locator("#samples pre").inner_text() == "It <b>was late\n</b>"
    assert "after epoch 1, step 4" in page.locator("#samples article").inner_text()
    page.get_by_role("checkbox", name="<b>old").uncheck()
    expect(page.locator("#samples")).to_be_hidden()
    assert "old" not in label.get_attribute("aria-label")
    page.select_option("#across", "time")
    assert figure.locator("path.line").count() == 1
    if width > 1000:
        label.hover()
        expect(figure.locator("figcaption")).to_contain_text(": ")
        page.mouse.move(0, 0)
    assert fits(page)
    assert violations(page) == []
    assert [line for line in said if not line.startswith("data:")] == []
    context.close()
