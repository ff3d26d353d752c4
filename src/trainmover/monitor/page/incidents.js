// The incidents: who goes, who comes, and what the time was spent on.

import { byId, clock, make, PHASES, seconds } from "./format.js";
import { now, shown, state } from "./state.js";

const SHOWN = 200;
let open = new Set();

const phaseClass = (name) => `phase-${PHASES.indexOf(name)}`;

export function setUpIncidents(lookAt, filterBy) {
  byId("phases").replaceChildren(...PHASES.map((name) => make("li", {}, make("i", { class: phaseClass(name), "aria-hidden": "true" }), name)));
  const list = byId("incidents");
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-at]");
    if (button) lookAt(Number(button.dataset.at));
    const filter = event.target.closest("button[data-incident]");
    if (filter) filterBy(filter.dataset.incident);
  });
  list.addEventListener("toggle", (event) => {
    const { id } = event.target.closest("li").dataset;
    if (event.target.open) open.add(id);
    else open.delete(id);
  }, true);
}

export const startOf = (row) => Math.min(...Object.values(row.times));

export function endOf(row) {
  if (row.state === "open") return state.at ?? now();
  return Math.max(...Object.values(row.times));
}

const tookOf = (row) => Math.max(0, endOf(row) - startOf(row));

/** A part of a bar; its width is set as a property, for the content security policy forbids style attributes. */
function piece(kind, title, share) {
  const part = make("span", { class: `piece ${kind}`, title });
  part.style.flexGrow = String(share);
  return part;
}

function bar(row, longest) {
  const start = startOf(row);
  const took = Math.max(tookOf(row), 1e-6);
  const pieces = row.phases.map(([name, from, to]) => piece(phaseClass(name), `${name}: ${seconds(to - from)}`, (to - from) / took));
  if (row.state === "open") {
    const last = row.phases.length ? row.phases.at(-1)[2] : start;
    pieces.push(piece("running", row.doing, Math.max(0, endOf(row) - last) / took));
  }
  const whole = make("div", { class: "bar", role: "img", "aria-label": row.phases.map(([name, from, to]) => `${name} ${seconds(to - from)}`).join(", ") || row.doing }, ...pieces);
  whole.style.width = `${100 * Math.max(0.04, took / longest)}%`;
  return whole;
}

function item(row, longest) {
  const over = row.state !== "open";
  const who = row.joiner ? `${row.machine} → ${row.joiner}` : row.machine;
  const start = startOf(row);
  const head = make("summary", {},
    make("span", { class: "kind", data: { kind: row.kind } }, row.kind),
    make("b", { class: "who" }, who),
    make("span", { class: "muted at" }, `${clock(start)}${row.step === null ? "" : ` · step ${row.step}`}`),
    make("span", { class: "outcome", data: { outcome: row.state } }, row.state === "closed" ? seconds(tookOf(row)) : row.state === "refused" || row.state === "unfinished" ? row.state : `${seconds(tookOf(row))} …`),
  );
  const table = make("table", { class: "phase-table" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Phase"), make("th", { scope: "col" }, "Took"), make("th", { scope: "col" }, "From"))),
    make("tbody", {}, ...row.phases.map(([name, from, to]) => make("tr", {},
      make("td", {}, make("i", { class: phaseClass(name), "aria-hidden": "true" }), name),
      make("td", {}, seconds(to - from)), make("td", {}, clock(from, true))))));
  const more = make("div", { class: "incident-more" },
    row.cause ? make("p", {}, row.cause) : null,
    row.phases.length ? table : null,
    make("p", { class: "muted" }, [`incident ${row.id}`, row.epoch === null ? "" : `epoch ${row.epoch}`, row.attempts > 1 ? `${row.attempts} attempts` : ""].filter(Boolean).join(" · ")),
    make("p", {},
      make("button", { type: "button", class: "plain", data: { at: start } }, "Look at that moment"), " ",
      make("button", { type: "button", class: "plain", data: { incident: row.id } }, "Its events")),
  );
  const details = make("details", open.has(row.id) ? { open: true } : {}, head, more);
  return make("li", { data: { id: row.id, state: row.state } }, details, bar(row, longest),
    over && row.state === "closed" ? null : make("p", { class: "doing", data: { outcome: row.state } }, row.doing));
}

export function drawIncidents() {
  const rows = shown().incidents.filter((row) => Object.keys(row.times).length).sort((a, b) => startOf(b) - startOf(a)).slice(0, SHOWN);
  const longest = Math.max(1e-6, ...rows.map(tookOf));
  byId("incidents-empty").hidden = rows.length > 0;
  byId("phases").hidden = rows.length === 0;
  const list = byId("incidents");
  const fresh = rows.map((row) => item(row, longest));
  const focus = document.activeElement?.closest?.("#incidents li")?.dataset.id;
  fresh.forEach((next, place) => {
    const there = list.children[place];
    if (there?.isEqualNode(next)) return;
    if (there) there.replaceWith(next);
    else list.append(next);
    if (focus && next.dataset.id === focus) next.querySelector("summary").focus();
  });
  while (list.children.length > fresh.length) list.lastElementChild.remove();
}
