// Time: the slider, play, and back to now.

import { byId, clock, make, setText, span } from "./format.js";
import { endOf, startOf } from "./incidents.js";
import { lookAt as ask, now, state } from "./state.js";

const SPEED = 10;
const TICK = 250; // milliseconds
let playing = null;

const start = () => state.first ?? now();
const end = () => Math.max(start() + 1, state.live ? now() : (state.last ?? 0));

/** Looks at a moment; null, or one that is not over yet: now. */
export function lookAt(time) {
  if (time !== null && time >= end() - 0.05) time = null;
  if (time === null) stop();
  ask(time === null ? null : Math.max(start(), time));
}

export const goBy = (step) => lookAt((state.at ?? end()) + step);

/** To the beginning of the incident before or after. */
export function goToIncident(direction) {
  const times = [...state.incidents.values()].filter((row) => Object.keys(row.times).length).map(startOf).sort((a, b) => a - b);
  const at = state.at ?? end();
  const found = direction < 0 ? times.findLast((time) => time < at - 0.01) : times.find((time) => time > at + 0.01);
  lookAt(found ?? (direction < 0 ? start() : null));
}

function stop() {
  if (playing !== null) clearInterval(playing);
  playing = null;
}

export function play() {
  if (playing !== null) {
    stop();
  } else {
    if (state.at === null) lookAt(start());
    playing = setInterval(() => goBy((SPEED * TICK) / 1000), TICK);
  }
  drawScrub();
}

export function drawScrub() {
  const slider = byId("time");
  const [low, high] = [start(), end()];
  slider.min = String(low);
  slider.max = String(high);
  if (document.activeElement !== slider || state.at === null) slider.value = String(state.at ?? high);
  const at = state.at;
  const known = state.first !== null;
  const text = !known ? "–" : at === null ? clock(high) : `${clock(at)} (${span(high - at)} ${state.live ? "ago" : "before the end"})`;
  setText("time-text", text);
  slider.setAttribute("aria-valuetext", at === null ? "now" : text);
  slider.disabled = !known;
  byId("live").setAttribute("aria-pressed", String(at === null));
  setText("live", state.live ? "Live" : "End");
  byId("play").setAttribute("aria-label", playing === null ? "Play from here" : "Stop");
  byId("play-path").setAttribute("d", playing === null ? "M6 4v12l10-6z" : "M5 4h3.5v12H5zM11.5 4H15v12h-3.5z");
  document.body.classList.toggle("past", at !== null);
  const rows = [...state.incidents.values()].filter((row) => Object.keys(row.times).length);
  const ticks = rows.map((row) => {
    const left = (startOf(row) - low) / (high - low);
    const tick = make("i", { data: { kind: row.kind } });
    tick.style.left = `${100 * left}%`;
    tick.style.width = `max(3px, ${(100 * Math.max(0, endOf(row) - startOf(row))) / (high - low)}%)`;
    return tick;
  });
  byId("ticks").replaceChildren(...ticks);
}

export function setUpScrub() {
  byId("time").addEventListener("input", (event) => { stop(); lookAt(Number(event.target.value)); });
  byId("live").addEventListener("click", () => lookAt(null));
  byId("play").addEventListener("click", play);
}
