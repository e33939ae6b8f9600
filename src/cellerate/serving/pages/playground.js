"use strict";
// The page at /: texts with the probability of each character, forecasts, and a session watched as it reads.

const $ = (id) => document.getElementById(id);
const models = new Map();
let stopping = null;
let playing = null;

function tell(place, text, bad = false) {
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

async function call(path, body, options = {}) {
  const headers = { "content-type": "application/json" };
  const given = body === undefined ? {} : { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await fetch(path, { ...given, ...options });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({ error: answer.statusText }));
    throw new Error(told.error.message || told.error);
  }
  return answer;
}

function model() {
  return models.get($("model").value);
}

function show() {
  const task = model().task;
  $("text").hidden = task !== "text";
  $("series").hidden = task !== "series";
  $("other").hidden = task === "text" || task === "series";
  $("about").textContent = `${task || "any task"}, ${model().precision}`;
  if (task === "series") {
    const series = model().series;
    $("rows").placeholder = `${series.features.join(",")}\n(at least ${series.window} rows of numbers)`;
  }
  watch();
}

async function watch() {
  const shown = model();
  if (!shown.sessions) {
    tell($("sessions"), "This model keeps none: a layer needs steps that are still to come.");
    return;
  }
  try {
    const told = await (await call(`/v1/models/${shown.id}/sessions`)).json();
    tell($("sessions"), told.sessions === 1 ? "1 session" : `${told.sessions} sessions`);
  } catch (error) {
    tell($("sessions"), error.message, true);
  }
}

// --- texts

function* events(buffer) {
  for (const event of buffer.split("\n\n")) {
    if (event.startsWith("data: ") && event !== "data: [DONE]") yield JSON.parse(event.slice(6));
  }
}

function draw(place, details) {
  details.tokens.forEach((token, at) => {
    const piece = document.createElement("span");
    const likely = Math.exp(details.token_logprobs[at]);
    piece.className = "drawn";
    piece.textContent = token;
    piece.style.setProperty("--doubt", Math.min(1, -details.token_logprobs[at] / 6));
    const others = Object.entries(details.top_logprobs[at])
      .sort((a, b) => b[1] - a[1])
      .map(([text, log]) => `${JSON.stringify(text)} ${(100 * Math.exp(log)).toFixed(1)} %`);
    piece.title = `${(100 * likely).toFixed(1)} %\n\n${others.join("\n")}`;
    place.append(piece);
  });
}

async function complete(event) {
  event.preventDefault();
  const place = $("drawn");
  const given = document.createElement("span");
  given.className = "given";
  given.textContent = $("prompt").value;
  place.replaceChildren(given);
  stopping = new AbortController();
  $("draw").disabled = true;
  $("stop").disabled = false;
  const begin = performance.now();
  let count = 0;
  let reason = "";
  try {
    const body = { model: model().id, prompt: $("prompt").value, stream: true, logprobs: 5 };
    for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
      if ($(name).value !== "") body[name] = Number($(name).value);
    }
    const answer = await call("/v1/completions", body, { signal: stopping.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      buffer += part.value;
      const end = buffer.lastIndexOf("\n\n");
      for (const told of events(buffer.slice(0, Math.max(end, 0)))) {
        if (told.error) throw new Error(told.error.message);
        for (const choice of told.choices) {
          if (choice.logprobs) {
            draw(place, choice.logprobs);
            count += choice.logprobs.tokens.length;
          }
          reason = choice.finish_reason || reason;
        }
      }
      buffer = buffer.slice(end < 0 ? 0 : end + 2);
      const seconds = (performance.now() - begin) / 1000;
      tell($("text-told"), `${count} drawn in ${seconds.toFixed(2)} s`);
    }
    tell($("text-told"), `${$("text-told").textContent}; ended: ${reason}`);
  } catch (error) {
    const stopped = error.name === "AbortError";
    tell($("text-told"), stopped ? `${count} drawn; stopped` : error.message, !stopped);
  } finally {
    $("draw").disabled = false;
    $("stop").disabled = true;
  }
}

// --- series

function parsed(text) {
  const { features } = model().series;
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length === 0) throw new Error("There are no rows: paste some, or choose a file.");
  const cells = lines.map((line) => line.split(/[,;\t]/).map((cell) => cell.trim()));
  let places = features.map((_, at) => at);
  if (cells[0].some((cell) => Number.isNaN(Number(cell)))) {
    const names = cells.shift().map((name) => name.replace(/^"|"$/g, ""));
    places = features.map((name) => names.indexOf(name));
    const missing = features.filter((_, at) => places[at] < 0);
    if (missing.length) throw new Error(`The first row has no column ${missing.join(", ")}.`);
  }
  return cells.map((row, number) =>
    places.map((place) => {
      const value = row[place] === "" || row[place] === undefined ? NaN : Number(row[place]);
      if (Number.isNaN(value)) throw new Error(`Row ${number + 1} has no number in column ${place + 1}.`);
      return value;
    }),
  );
}

function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// past: numbers; next: [{low, middle, high}]; scores: numbers below the line, or none.
function chart(title, past, next, scores) {
  const width = 900, height = scores ? 260 : 220, left = 60, right = 10, top = 28, bottom = scores ? 70 : 20;
  const values = past.concat(next.flatMap((each) => [each.low, each.middle, each.high])).filter(Number.isFinite);
  const low = Math.min(...values), high = Math.max(...values), span = high - low || 1;
  const count = Math.max(past.length + next.length - 1, 1);
  const x = (at) => left + ((width - left - right) * at) / count;
  const y = (value) => top + (height - top - bottom) * (1 - (value - low) / span);
  const line = (points) => points.map(([at, value], n) => `${n ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: the rows and the forecast` });
  svg.append(node("text", { x: left, y: 18 }, title));
  for (const value of [low, high]) {
    svg.append(node("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(node("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(4))));
  }
  svg.append(node("path", { class: "past", d: line(past.map((value, at) => [at, value])) }));
  if (next.length) {
    const from = past.length - 1, last = past[from];
    const up = next.map((each, at) => [from + 1 + at, each.high]);
    const down = next.map((each, at) => [from + 1 + at, each.low]).reverse();
    svg.append(node("path", { class: "band", d: `${line([[from, last], ...up, ...down])}Z` }));
    const middle = next.map((each, at) => [from + 1 + at, each.middle]);
    svg.append(node("path", { class: "next", d: line([[from, last], ...middle]) }));
  }
  if (scores) {
    const most = Math.max(3, ...scores.map((score) => score || 0));
    scores.forEach((score, at) => {
      const size = (40 * (score || 0)) / most;
      svg.append(node("rect", { class: "score", x: x(at) - 1.5, y: height - 8 - size, width: 3, height: size }));
    });
    svg.append(node("text", { x: left - 6, y: height - 12, "text-anchor": "end" }, "score"));
  }
  return svg;
}

function charts(rows, forecast, scores) {
  const { features, targets, quantiles } = model().series;
  const middle = Math.floor(quantiles.length / 2);
  const made = targets.map((name, target) => {
    const next = forecast.map((step) => {
      const value = step[target];
      if (!quantiles.length) return { low: value, middle: value, high: value };
      return { low: value[0], middle: value[middle], high: value[value.length - 1] };
    });
    const at = features.indexOf(name);
    const past = at < 0 ? [next[0].middle] : rows.map((row) => row[at]);
    return chart(name, past, next, scores);
  });
  $("charts").replaceChildren(...made);
}

async function forecast() {
  try {
    const rows = parsed($("rows").value);
    const begin = performance.now();
    const told = await (await call(`/v1/models/${model().id}/forecast`, { rows })).json();
    tell($("series-told"), `${rows.length} rows; forecast of ${told.forecast.length} in ${(performance.now() - begin).toFixed(0)} ms`);
    charts(rows.slice(-3 * model().series.window), told.forecast);
  } catch (error) {
    tell($("series-told"), error.message, true);
  }
}

async function play() {
  if (playing) {
    playing.abort();
    return;
  }
  const mine = (playing = new AbortController());
  const name = `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  const path = `/v1/models/${model().id}/sessions`;
  let opened = false;
  $("play").textContent = "Stop";
  try {
    const rows = parsed($("rows").value);
    const scores = [];
    await call(path, { id: name });
    opened = true;
    for (let at = 0; at < rows.length && !mine.signal.aborted; at += 1) {
      const told = await (await call(`${path}/${name}/push`, { inputs: [rows[at]] })).json();
      scores.push(told.outputs.score[0]);
      const first = Math.max(0, at + 1 - 200);
      charts(rows.slice(first, at + 1), told.outputs.forecast, scores.slice(first));
      const score = scores[at] === null ? "none" : scores[at].toFixed(2);
      tell($("series-told"), `row ${at + 1} of ${rows.length}; score ${score}`);
      if (at % 10 === 0) watch();
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  } catch (error) {
    tell($("series-told"), error.message, true);
  } finally {
    playing = null;
    $("play").textContent = "Push row by row";
    if (opened) await call(`${path}/${name}`, undefined, { method: "DELETE" }).catch(() => {});
    watch();
  }
}

async function start() {
  try {
    const told = await (await call("/v1/models")).json();
    for (const each of told.data) {
      models.set(each.id, each);
      $("model").append(new Option(each.id, each.id));
    }
    show();
  } catch (error) {
    tell($("sessions"), error.message, true);
  }
}

$("model").addEventListener("change", show);
$("text-form").addEventListener("submit", complete);
$("stop").addEventListener("click", () => stopping && stopping.abort());
$("forecast").addEventListener("click", forecast);
$("play").addEventListener("click", play);
$("file").addEventListener("change", async () => {
  if ($("file").files.length) $("rows").value = await $("file").files[0].text();
});
start();
setInterval(() => models.size && !document.hidden && watch(), 2000);
