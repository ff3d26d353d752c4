// The machines: a cell for each seat and each standby, and one of them in detail.

import { byId, make, MEANING, seconds, setText, SHAPES } from "./format.js";
import { changed, shown, state } from "./state.js";

const DENSE = 160; // more machines than this are small squares
let selected = null;

const GONE = new Set(["failed", "left"]);
const order = (a, b) => a.name.localeCompare(b.name, "en", { numeric: true });

function stateOf(row) {
  return row.ranks?.includes("stopped") ? "frozen" : row.state;
}

function describe(row, seat) {
  const parts = [seat === null ? row.name : `seat ${seat}, ${row.name}`, stateOf(row)];
  if (row.role && row.role !== "all") parts.push(`role ${row.role}`);
  if (row.note) parts.push(row.note);
  return parts.join(", ");
}

function facts(row) {
  if (row.state === "warming") return row.warming.length && row.warming[0] !== "all" ? row.warming.join(", ") : "warming up";
  if (row.state === "parked") return row.parked.some((role) => role !== "all") ? row.parked.join(", ") : "ready";
  if (row.cpu_percent === null) return row.role && row.role !== "all" ? row.role : "";
  return `${row.cpu_percent} % · ${row.rss_mib} MiB`;
}

function cell(row, seat, dense) {
  const key = row ? row.name : `seat-${seat}`;
  const kind = row ? stateOf(row) : "empty";
  const button = make("button", {
    type: "button", class: "cell", tabindex: "-1", data: { state: kind, key },
    "aria-label": row ? describe(row, seat) : `seat ${seat}, empty`,
    "aria-pressed": String(selected === key),
    title: row ? describe(row, seat) : `seat ${seat} is empty`,
  });
  if (dense) return button;
  if (seat !== null) button.append(make("span", { class: "seat" }, String(seat)));
  button.append(
    make("span", { class: "name" }, row ? row.name : "empty"),
    make("span", { class: "state" }, make("i", { "aria-hidden": "true" }, row ? (SHAPES[row.state] ?? "") : "∅"), kind),
    make("span", { class: "fact" }, row ? facts(row) : ""),
  );
  return button;
}

/** Puts cells into a grid and leaves those alone that have not changed. */
function fill(grid, cells, dense) {
  const focused = document.activeElement?.dataset?.key;
  grid.classList.toggle("dense", dense);
  const old = [...grid.children];
  cells.forEach((fresh, place) => {
    const there = old[place];
    if (there && there.isEqualNode(fresh)) return;
    if (there) there.replaceWith(fresh);
    else grid.append(fresh);
    if (focused !== undefined && fresh.dataset.key === focused) fresh.focus();
  });
  for (const extra of old.slice(cells.length)) extra.remove();
}

export function drawMachines() {
  const { job, machines, layout } = shown();
  const sorted = [...machines].sort(order);
  const there = sorted.filter((row) => !GONE.has(row.state));
  const over = job && (job.phase === "completed" || job.phase === "failed");
  const seated = new Map(there.filter((row) => row.position !== null).map((row) => [row.position, row]));
  const spares = there.filter((row) => row.position === null);
  if (over) {
    // Machines leave when the job is over; the seats show who had them at the end.
    const named = new Map(machines.map((row) => [row.name, row]));
    layout.forEach((name, seat) => { if (named.has(name) && !seated.has(seat)) seated.set(seat, { ...named.get(name), ...(named.get(name).state === "left" && job.phase === "completed" ? { state: "done", note: "" } : {}) }); });
  }
  const sitting = new Set([...seated.values()].map((row) => row.name));
  const gone = sorted.filter((row) => GONE.has(row.state) && !sitting.has(row.name));
  const highest = Math.max(-1, ...seated.keys());
  const count = Math.max(highest + 1, layout.length, over ? 0 : (job?.seats ?? 0));
  const dense = count + spares.length > DENSE;

  fill(byId("seats"), Array.from({ length: count }, (_, seat) => cell(seated.get(seat) ?? null, seat, dense)), dense);
  fill(byId("standbys"), spares.map((row) => cell(row, null, dense)), dense);
  document.querySelector(".seats-title").hidden = count === 0;
  byId("standbys-title").hidden = spares.length === 0;
  byId("gone-box").hidden = gone.length === 0;
  setText("gone-title", `${gone.length} gone`);
  const rows = gone.slice(-200).map((row) => make("li", {},
    make("b", {}, row.name), make("span", { class: "state-text", data: { state: row.state } }, row.state), make("span", { class: "muted" }, row.note)));
  const list = byId("gone");
  if (list.children.length !== rows.length || !rows.every((row, place) => row.isEqualNode(list.children[place]))) list.replaceChildren(...rows);

  const counts = new Map();
  for (const row of there) counts.set(stateOf(row), (counts.get(stateOf(row)) ?? 0) + 1);
  const chips = [...counts].map(([name, many]) => make("li", { data: { state: name }, title: MEANING[name] },
    make("i", { "aria-hidden": "true" }, SHAPES[name] ?? "●"), `${many} ${name}`));
  byId("states").replaceChildren(...chips);
  drawDetail(machines);
  rove();
}

function drawDetail(machines) {
  const box = byId("machine");
  const row = machines.find((item) => item.name === selected);
  box.hidden = row === undefined;
  if (row === undefined) return;
  const warm = Object.entries(row.warm_up_seconds ?? {}).map(([role, parts]) =>
    `${role || "all"}: ${Object.entries(parts).map(([part, took]) => `${part} ${seconds(took)}`).join(", ")}`);
  const lines = [
    ["State", `${stateOf(row)} – ${MEANING[row.state] ?? ""}`],
    ["Seat", row.position === null ? "none" : String(row.position)],
    ["Role", row.role ?? (row.parked.length ? `warm in ${row.parked.join(", ")}` : "–")],
    ["Host", `${row.host} (${row.slots} ${row.slots === 1 ? "slot" : "slots"})`],
    ["Life", row.incarnation],
    ["Ranks", row.ranks.length ? row.ranks.join(", ") : "–"],
    ["Load", row.cpu_percent === null ? "not known" : `${row.cpu_percent} % of a processor, ${row.rss_mib} MiB`],
    ["Warm-up", warm.join("; ") || "–"],
    ["Note", row.note || "–"],
  ];
  const fresh = make("dl", {}, ...lines.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  const head = make("h4", {}, row.name);
  if (box.children.length !== 2 || !box.children[1].isEqualNode(fresh)) box.replaceChildren(head, fresh);
}

/** One cell of each grid is in the order of the Tab key; the arrow keys do the rest. */
function rove() {
  for (const grid of [byId("seats"), byId("standbys")]) {
    const cells = [...grid.children];
    const current = cells.find((item) => item === document.activeElement) ?? cells.find((item) => item.dataset.key === selected) ?? cells[0];
    for (const item of cells) item.tabIndex = item === current ? 0 : -1;
  }
}

export function select(key) {
  selected = selected === key ? null : key;
  changed();
}

export function setUpMachines() {
  for (const grid of [byId("seats"), byId("standbys")]) {
    grid.addEventListener("click", (event) => {
      const found = event.target.closest(".cell");
      if (found) select(found.dataset.key);
    });
    grid.addEventListener("keydown", (event) => {
      const cells = [...byId("seats").children, ...byId("standbys").children];
      const place = cells.indexOf(document.activeElement);
      if (place < 0) return;
      const wide = Math.max(1, Math.round(grid.clientWidth / (cells[place].offsetWidth + 6)));
      const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide, Home: -place, End: cells.length - 1 - place };
      if (!(event.key in moves)) return;
      event.preventDefault();
      event.stopPropagation();
      const next = cells[Math.min(cells.length - 1, Math.max(0, place + moves[event.key]))];
      next.focus();
      rove();
    });
  }
  void state;
}
