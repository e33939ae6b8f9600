"use strict";
// The page of `cellerate watch`: asks for what is new of each run, and draws it.

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2000;
const COLOURS = 6;
const MOST_ROWS = 10000;
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [520, 230, 66, 26, 10, 12];
const runs = new Map();
const hidden = new Set();

const percent = (value) => `${+(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
const CHARTS = [
  { title: "Loss", names: ["loss", "epoch/val_loss"], show: short, remark: "dashed: validation" },
  { title: "Items/s", names: ["items_per_s"], show: short, zero: true },
  { title: "Waits for data", names: ["data_wait"], show: percent, zero: true },
  { title: "Processors in use", names: ["machine/cpu"], show: percent, zero: true },
  { title: "Memory", names: ["machine/memory_bytes"], show: bytes, zero: true },
  { title: "GPUs in use", names: /^machine\/gpu\d+_use$/, show: percent, zero: true },
  { title: "GPU memory", names: /^machine\/gpu\d+_memory_bytes$/, show: bytes, zero: true },
  { title: "GPU power", names: /^machine\/gpu\d+_power_w$/, show: (value) => `${Math.round(value)} W`, zero: true },
];

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)} M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)} k`;
  return size !== 0 && size < 1e-3 ? value.toExponential(1) : `${+value.toPrecision(4)}`;
}

function bytes(value) {
  if (value === 0) return "0";
  return value >= 1e9 ? `${+(value / 1e9).toPrecision(3)} GB` : `${+(value / 1e6).toPrecision(3)} MB`;
}

function ago(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function node(name, attributes = {}, text = "") {
  const svg = ["svg", "path", "line", "text", "circle"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

async function ask() {
  const known = new URLSearchParams();
  for (const run of runs.values()) known.set(run.name, `${run.began},${run.end}`);
  let told;
  try {
    const answer = await fetch(`runs?${known}`);
    if (!answer.ok) throw new Error(answer.statusText);
    told = await answer.json();
    $("told").classList.remove("bad");
  } catch {
    $("told").textContent = "no answer: was `cellerate watch` ended? Trying again.";
    $("told").classList.add("bad");
    return;
  }
  take(told);
}

async function follow() {
  try {
    await ask();
  } finally {
    setTimeout(follow, EVERY_MS);
  }
}

// Half of the rows once there are very many; those of epochs all stay.
function thinned(rows) {
  if (rows.length <= MOST_ROWS) return rows;
  return rows.filter((row, number) => number % 2 === 0 || "epoch/loss" in row || "sample" in row);
}

function take(told) {
  const names = new Set(told.runs.map((run) => run.name));
  for (const name of runs.keys()) if (!names.has(name)) runs.delete(name);
  for (const run of told.runs) {
    const before = runs.get(run.name);
    const same = before && before.began === run.began && run.began;
    runs.set(run.name, { ...run, rows: thinned(same ? before.rows.concat(run.rows) : run.rows) });
  }
  const now = [...runs.values()].filter((run) => run.status === "training").length;
  $("told").textContent = runs.size ? `${now} of ${runs.size} training` : "no run here yet";
  list(told.now);
  draw();
  write();
}

const last = (run, name) => run.rows.findLast((row) => row[name] !== undefined)?.[name];

function list(now) {
  const focused = document.activeElement?.dataset?.run;
  $("runs").replaceChildren(
    ...[...runs.values()].map((run, number) => {
      const line = node("tr");
      const first = node("td");
      const label = node("label", { title: run.folder });
      const box = node("input", { type: "checkbox", "data-run": run.name });
      box.checked = !hidden.has(run.name);
      box.addEventListener("change", () => {
        if (box.checked) hidden.delete(run.name);
        else hidden.add(run.name);
        draw();
        write();
      });
      const key = node("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" });
      key.append(node("path", { d: "M0 6H32", class: `line c${number % COLOURS}` }));
      label.append(box, key, run.name);
      first.append(label);
      line.append(first);
      const best = run.rows.reduce((least, row) => Math.min(least, row["epoch/val_loss"] ?? Infinity), Infinity);
      const wait = last(run, "data_wait"), memory = last(run, "machine/memory_bytes"), speed = last(run, "items_per_s");
      for (const text of [
        run.status === "silent" ? (run.heard ? `silent for ${ago(now - run.heard)}` : "not begun") : run.status,
        last(run, "epoch") ?? "",
        last(run, "step")?.toLocaleString("en") ?? "",
        last(run, "loss")?.toFixed(4) ?? "",
        Number.isFinite(best) ? best.toFixed(4) : "",
        speed === undefined ? "" : short(speed),
        wait === undefined ? "" : percent(wait),
        memory === undefined ? "" : bytes(memory),
      ]) line.append(node("td", {}, String(text)));
      return line;
    }),
  );
  if (focused) [...document.querySelectorAll("input")].find((box) => box.dataset.run === focused)?.focus();
}

function lines(chart) {
  const across = $("across").value;
  const found = [];
  [...runs.values()].forEach((run, number) => {
    if (hidden.has(run.name) || !run.rows.length) return;
    const begin = run.rows[0].time;
    const names = Array.isArray(chart.names)
      ? chart.names
      : [...new Set(run.rows.flatMap((row) => Object.keys(row)))].filter((name) => chart.names.test(name));
    for (const name of names) {
      const points = run.rows
        .filter((row) => Number.isFinite(row[name]))
        .map((row) => [across === "step" ? row.step : (row.time - begin) / 60, row[name]]);
      if (points.length) found.push({ run, number, name, points });
    }
  });
  return found;
}

function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step / 2 ? 0 : at);
  return found;
}

function range(values, zero) {
  let low = zero ? 0 : Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (zero) high = ticks(0, high, 4).at(-1) < high ? ticks(0, high, 4).at(-1) + ticks(0, high, 4)[1] : high;
  if (low === high) [low, high] = zero ? [0, high || 1] : [low - 0.5, high + 0.5];
  return [low, high];
}

function figure(chart, drawn) {
  const made = node("figure");
  const caption = node("figcaption", {}, chart.title);
  const told = node("span", {}, chart.remark ?? "");
  caption.append(told);
  const [left, right] = range(drawn.flatMap((line) => line.points.map((point) => point[0])), false);
  const [low, high] = range(drawn.flatMap((line) => line.points.map((point) => point[1])), chart.zero);
  const x = (value) => LEFT + ((value - left) / (right - left)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const said = drawn.map((line) => `${line.run.name} ${line.name}: ${chart.show(line.points.at(-1)[1])}`);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${chart.title}. ${said.join(". ")}` });
  for (const value of ticks(low, high, 4)) {
    svg.append(node("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, chart.show(value)));
  }
  for (const value of ticks(left, right, 5)) {
    svg.append(node("text", { x: x(value), y: HEIGHT - 6, "text-anchor": "middle" }, short(value)));
  }
  for (const line of drawn) {
    const colour = `c${line.number % COLOURS}`;
    const path = line.points.map(([a, b], place) => `${place ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    const kind = line.name.startsWith("epoch/") ? " validation" : "";
    svg.append(node("path", { d: path, class: `line ${colour}${kind}` }));
    if (line.points.length < 30 && (kind || line.points.length === 1)) {
      for (const [a, b] of line.points) svg.append(node("circle", { cx: x(a), cy: y(b), r: 2.5, class: colour }));
    }
  }
  const at = node("line", { class: "at", y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
  svg.append(at);
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * WIDTH;
    const wanted = left + ((place - LEFT) / (WIDTH - LEFT - RIGHT)) * (right - left);
    at.setAttribute("x1", place);
    at.setAttribute("x2", place);
    const near = drawn.map((line) => line.points.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a)));
    told.textContent = near.map((point) => `${short(point[0])}: ${chart.show(point[1])}`).join("   ");
  });
  svg.addEventListener("mouseleave", () => {
    at.setAttribute("x1", -9);
    at.setAttribute("x2", -9);
    told.textContent = chart.remark ?? "";
  });
  made.append(caption, svg);
  return made;
}

function draw() {
  // What the mouse points at stays as it is until it goes.
  if ($("charts").querySelector("svg:hover")) return;
  const made = CHARTS.map((chart) => [chart, lines(chart)]).filter(([, drawn]) => drawn.length);
  $("charts").replaceChildren(...made.map(([chart, drawn]) => figure(chart, drawn)));
}

// What each run makes of the same beginning, as of its last epoch.
function write() {
  const shown = [...runs.values()].filter((run) => !hidden.has(run.name) && last(run, "sample"));
  $("samples").hidden = !shown.length;
  const written = shown.map((run) => {
    const row = run.rows.findLast((one) => one.sample);
    const article = node("article");
    article.append(node("h3", {}, run.name), node("p", {}, `after epoch ${row.epoch}, step ${row.step.toLocaleString("en")}`));
    const text = node("pre", { dir: "auto", tabindex: "0" });
    text.append(node("span", {}, row.sample.given), node("b", {}, row.sample.made));
    article.append(text);
    return article;
  });
  // A reader keeps the place, and a selection, as long as nothing new is written.
  const now = JSON.stringify(shown.map((run) => [run.name, run.rows.findLast((one) => one.sample)]));
  if ($("samples").dataset.now === now) return;
  $("samples").dataset.now = now;
  $("samples").lastElementChild.replaceChildren(...written);
}

$("across").addEventListener("change", draw);
follow();
