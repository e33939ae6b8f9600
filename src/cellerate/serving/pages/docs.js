"use strict";
// The page at /docs: the OpenAPI document as tables.

function made(name, text, ...children) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

function body(operation, schemas) {
  if (!operation.requestBody) return [];
  return Object.entries(operation.requestBody.content).map(([kind, { schema }]) => {
    const name = schema && schema.$ref && schema.$ref.split("/").pop();
    const shown = name ? JSON.stringify(schemas[name], null, 2) : "";
    return made("details", "", made("summary", `body: ${kind}`), made("pre", shown || "see the documentation"));
  });
}

async function start() {
  const place = document.getElementById("routes");
  const answer = await fetch("/openapi.json");
  const told = await answer.json();
  document.getElementById("about").textContent = `version ${told.info.version}`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(told.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const group = operation.tags[0];
      if (!groups.has(group)) groups.set(group, []);
      const route = made("code", `${method.toUpperCase()} ${path}`);
      const text = made("td", operation.summary, ...body(operation, told.components.schemas));
      groups.get(group).push(made("tr", "", made("td", "", route), text));
    }
  }
  for (const [group, rows] of groups) {
    const head = made("thead", "", made("tr", "", made("th", "Route"), made("th", "What it does")));
    place.append(made("h2", group), made("table", "", head, made("tbody", "", ...rows)));
  }
}

start().catch((error) => { document.getElementById("about").textContent = error.message; });
