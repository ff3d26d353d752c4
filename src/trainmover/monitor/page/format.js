// Figures for a person, and elements made from text only: nothing that was said on the bus becomes HTML.

/** An element with classes, attributes and children; strings become text nodes. */
export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Sets text only where it differs, so that screen readers and selections are left alone. */
export function setText(id, text) {
  const element = typeof id === "string" ? byId(id) : id;
  if (element.textContent !== text) element.textContent = text;
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
  if (value < 99.5) return `${value.toFixed(1)} s`;
  return span(value);
}

export function span(value) {
  const whole = Math.max(0, Math.round(value));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s} s` : `${s} s`;
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(3);
  return value.toPrecision(4);
}

const two = (value) => String(value).padStart(2, "0");

/** Wall clock of unix seconds. */
export function clock(time, fraction = false) {
  const date = new Date(time * 1000);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return fraction ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

export const MEANING = {
  training: "trains on a seat",
  starting: "starts its ranks",
  spare: "a spare, not warm yet",
  warming: "a standby that warms up",
  parked: "a standby, warm and parked",
  joining: "takes a seat over",
  leaving: "leaves its seat",
  failed: "declared dead",
  left: "has left in good order",
  done: "trained to the end",
};

/** A shape for each state beside its colour: not everybody tells colours apart. */
export const SHAPES = {
  training: "●", starting: "○", spare: "○", warming: "◐", parked: "◆", joining: "▲", leaving: "▽", failed: "✕", left: "–", done: "✓",
};

export const PHASES = ["detect", "assign", "plan", "ask", "prepare", "switch and copy", "commit", "first step"];
