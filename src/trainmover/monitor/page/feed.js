// The events, the newest first, filtered by words.

import { byId, clock, make } from "./format.js";
import { changed, older, state } from "./state.js";

const SHOWN = 300;
const SIGNS = { bad: "✕", warn: "!", good: "✓", info: "·" };
let words = [];
let ofIncidents = false;
let drawn = "";

const haystack = (fact) => `${fact.type} ${fact.source} ${fact.text} ${fact.incident ?? ""} ${fact.machine ?? ""}`.toLowerCase();

function matches(fact) {
  if (ofIncidents && fact.incident === null) return false;
  if (words.length === 0) return true;
  fact.hay ??= haystack(fact);
  return words.every((word) => (word.startsWith("-") && word.length > 1 ? !fact.hay.includes(word.slice(1)) : fact.hay.includes(word)));
}

function line(fact) {
  return make("li", { data: { level: fact.level } },
    make("time", { datetime: new Date(fact.time * 1000).toISOString() }, clock(fact.time, true)),
    make("i", { class: "sign", "aria-label": fact.level === "info" ? null : fact.level }, SIGNS[fact.level]),
    make("span", { class: "type" }, fact.type),
    make("span", { class: "by" }, fact.incident ? make("button", { type: "button", class: "plain", data: { incident: fact.incident }, title: "Only this incident" }, fact.incident) : fact.source),
    make("span", { class: "text" }, fact.text),
  );
}

export function filterBy(text) {
  byId("filter").value = text;
  words = text.toLowerCase().split(/\s+/).filter(Boolean);
  changed();
}

export function drawFeed() {
  const limit = state.at ?? Infinity;
  const found = [];
  for (let place = state.facts.length - 1; place >= 0 && found.length < SHOWN; place -= 1) {
    const fact = state.facts[place];
    if (fact.time <= limit && matches(fact)) found.push(fact);
  }
  const key = `${found[0]?.number} ${found.at(-1)?.number} ${found.length} ${words.join(" ")} ${ofIncidents}`;
  byId("feed-empty").hidden = found.length > 0;
  byId("older").hidden = !(state.facts[0]?.number > 1);
  if (key === drawn) return;
  drawn = key;
  byId("feed").replaceChildren(...found.map(line));
}

export function setUpFeed() {
  byId("filter").addEventListener("input", (event) => filterBy(event.target.value));
  byId("older").addEventListener("click", () => older());
  byId("feed").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-incident]");
    if (button) filterBy(button.dataset.incident);
  });
  for (const [id, wanted] of [["feed-all", false], ["feed-incidents", true]]) {
    byId(id).addEventListener("click", () => {
      ofIncidents = wanted;
      byId("feed-all").setAttribute("aria-pressed", String(!wanted));
      byId("feed-incidents").setAttribute("aria-pressed", String(wanted));
      changed();
    });
  }
}
