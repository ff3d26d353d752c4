// The curves: a metric and the steps per second, with the incidents and the changes of membership in them.

import { byId, clock, number, setText } from "./format.js";
import { endOf, startOf } from "./incidents.js";
import { changed, now, state } from "./state.js";

const WINDOW = 5; // steps over which a rate is taken
let axis = "time";
let metric = null;
let charts = [];
let drawnKey = "";
let zoomed = false; // somebody looks at a part; new points must not take it away
let shownColumns = [[], [], []];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Where a time is on the horizontal axis. */
function place(time) {
  if (axis === "time") return time;
  const { steps } = state;
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? steps[low - 1][1] : null;
}

function timeAt(value) {
  if (axis === "time") return value;
  const found = state.steps.findLast((point) => point[1] <= value);
  return found ? found[0] : null;
}

/** Columns for uPlot: x, metric, rate. By step, what was done again replaces what was lost. */
function columns() {
  let points = state.steps;
  if (axis === "step") {
    const best = new Map();
    for (const point of points) best.set(point[1], point);
    points = [...best.values()].sort((a, b) => a[1] - b[1]);
  }
  const xs = points.map((point) => (axis === "time" ? point[0] : point[1]));
  const values = points.map((point) => point[4][metric] ?? null);
  const rates = points.map((point, at) => {
    const before = points[Math.max(0, at - WINDOW + 1)];
    const [took, steps] = [point[0] - before[0], point[1] - before[1]];
    return took > 0 && steps > 0 ? steps / took : null;
  });
  return [xs, values, rates];
}

function drawBehind(u) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const row of state.incidents.values()) {
    if (!Object.keys(row.times).length || row.state === "refused") continue;
    const [from, to] = [place(startOf(row)), place(endOf(row))];
    if (from === null || to === null) continue;
    const left = u.valToPos(from, "x", true);
    const width = Math.max(2 * devicePixelRatio, u.valToPos(to, "x", true) - left);
    ctx.fillStyle = colour(row.kind === "failure" ? "--failure-wash" : "--move-wash");
    ctx.fillRect(left, bbox.top, width, bbox.height);
  }
  ctx.restore();
}

function drawMarks(u, labelled) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineWidth = ratio;
  ctx.font = `600 ${11 * ratio}px ${colour("--font")}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  let free = -Infinity;
  for (const mark of state.marks) {
    if (mark.kind === "start") continue;
    const at = axis === "time" ? mark.time : mark.step;
    const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
    const ink = colour(mark.kind === "failure" ? "--failure" : mark.kind === "move" ? "--move" : "--accent");
    ctx.strokeStyle = ink;
    ctx.fillStyle = ink;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const wide = ctx.measureText(mark.text).width;
    if (labelled && x > free) {
      const right = x + 5 * ratio + wide < bbox.left + bbox.width;
      ctx.fillText(mark.text, right ? x + 5 * ratio : x - 5 * ratio - wide, bbox.top + 3 * ratio);
      free = x + (right ? wide + 12 * ratio : 0);
    }
  }
  if (state.at !== null) {
    const at = place(state.at);
    if (at !== null) {
      const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
      ctx.setLineDash([]);
      ctx.lineWidth = 2 * ratio;
      ctx.strokeStyle = colour("--accent");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

/** What is under the cursor, in words; without a cursor, what the curves show. */
function readOut(at) {
  const [xs, values, rates] = shownColumns;
  if (at === null || at === undefined || xs[at] === undefined) {
    setText("readout", "Dashed lines: machines changed. Shaded: an incident. Click: look at that moment; drag: zoom, double click: all.");
    return;
  }
  const time = timeAt(xs[at]);
  const point = state.steps.findLast((item) => item[0] <= time);
  setText("readout", `${clock(time)} · step ${point?.[1] ?? "–"} · epoch ${point?.[2] ?? "–"} · ${metric ?? "loss"} ${number(values[at] ?? null)} · ${rates[at] ? rates[at].toFixed(2) : "–"} steps/s`);
}

/** While a job runs, curves by time go on to now: a standstill is to be seen. */
function present() {
  const running = state.live && state.job && state.job.phase !== "completed" && state.job.phase !== "failed";
  return axis === "time" && running ? now() : -Infinity;
}

function wide(u, low, high) {
  const top = zoomed ? high : Math.max(high, present());
  return top > low ? [low, top] : [low - 1, low + 1];
}

function options(element, label, ink, { labelled, zero }) {
  const grid = { stroke: colour("--grid"), width: 1 };
  const font = `12px ${colour("--font")}`;
  const base = { stroke: colour("--muted"), grid, ticks: { ...grid, size: 4 }, font };
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    cursor: { sync: { key: "steps" }, points: { size: 7 }, drag: { x: true, y: false } },
    legend: { show: false },
    scales: { x: { time: axis === "time", range: wide }, y: { range: (u, low, high) => (zero ? [0, 1.1 * (high || 1)] : window.uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true)) } },
    axes: [
      axis === "time" ? { ...base, values: (u, splits) => splits.map((value) => clock(value)), space: 80, size: 34 } : { ...base, size: 34 },
      { ...base, size: 50, label, labelSize: 20, labelFont: font, values: (u, splits) => splits.map((value) => (value === null ? "" : String(Number(value.toPrecision(4))))) },
    ],
    series: [
      {},
      { label, stroke: ink, width: 1.8, points: { show: false }, spanGaps: true },
    ],
    hooks: {
      drawClear: [drawBehind],
      draw: [(u) => drawMarks(u, labelled)],
      setSelect: [(u) => { if (u.select.width > 0) zoomed = true; }],
      setCursor: [(u) => readOut(u.cursor.idx)],
    },
  };
}

function build(lookAt) {
  for (const chart of charts) chart.destroy();
  const places = [
    [byId("chart-metric"), metric ?? "loss", colour("--curve"), { labelled: true, zero: false }],
    [byId("chart-rate"), "steps/s", colour("--rate"), { labelled: false, zero: true }],
  ];
  const data = (shownColumns = columns());
  readOut(null);
  charts = places.map(([element, label, ink, kind], at) => {
    const chart = new window.uPlot(options(element, label, ink, kind), [data[0], data[at + 1]], element);
    chart.over.addEventListener("dblclick", () => { zoomed = false; });
    let down = null;
    chart.over.addEventListener("pointerdown", (event) => { down = event.clientX; });
    chart.over.addEventListener("click", (event) => {
      if (down !== null && Math.abs(event.clientX - down) > 4) return; // that was a zoom
      const time = timeAt(chart.posToVal(event.offsetX, "x"));
      if (time !== null) lookAt(time);
    });
    return chart;
  });
}

let rebuild = true;

export function drawCharts(lookAt) {
  const has = state.steps.length > 0;
  byId("curves-empty").hidden = has;
  byId("chart-metric").hidden = byId("chart-rate").hidden = !has;
  if (!has || !window.uPlot) return;
  const names = [...new Set(state.steps.slice(-50).flatMap((point) => Object.keys(point[4])))].sort();
  if (metric === null || (!names.includes(metric) && names.length)) {
    metric = names.includes("loss") ? "loss" : (names[0] ?? null);
    rebuild = true;
  }
  const box = byId("metric");
  byId("metric-box").hidden = names.length < 2;
  if (box.dataset.names !== names.join()) {
    box.dataset.names = names.join();
    box.replaceChildren(...names.map((name) => new Option(name, name, false, name === metric)));
  }
  if (rebuild) {
    rebuild = false;
    build(lookAt);
  } else {
    const key = `${state.steps.length} ${state.steps.at(-1)[0]} ${state.marks.length} ${state.at} ${[...state.incidents.values()].map((row) => row.stage).join()} ${Math.floor(present())}`;
    if (key === drawnKey) return;
    drawnKey = key;
    const data = (shownColumns = columns());
    charts.forEach((chart, at) => {
      chart.setData([data[0], data[at + 1]], !zoomed);
      if (zoomed) chart.redraw();
    });
  }
  const last = state.steps.at(-1);
  byId("chart-metric").setAttribute("aria-label", `${metric ?? "loss"} over ${state.steps.length} steps, ${number(last[4][metric] ?? null)} at step ${last[1]}; ${state.marks.filter((mark) => mark.kind !== "start").map((mark) => `${mark.kind} ${mark.text} at step ${mark.step}`).join(", ") || "no change of membership"}`);
  byId("chart-rate").setAttribute("aria-label", "Steps per second");
}

export const metricName = () => metric;

export function setAxis(wanted) {
  axis = wanted ?? (axis === "time" ? "step" : "time");
  byId("axis-time").setAttribute("aria-pressed", String(axis === "time"));
  byId("axis-step").setAttribute("aria-pressed", String(axis === "step"));
  rebuild = true;
  zoomed = false;
  changed();
}

export function setUpCharts() {
  byId("axis-time").addEventListener("click", () => setAxis("time"));
  byId("axis-step").addEventListener("click", () => setAxis("step"));
  byId("metric").addEventListener("change", (event) => {
    metric = event.target.value;
    rebuild = true;
    changed();
  });
  addEventListener("themechange", () => { rebuild = true; changed(); });
  new ResizeObserver(() => {
    for (const chart of charts) {
      const element = chart.root.parentElement;
      if (element.clientWidth) chart.setSize({ width: element.clientWidth, height: element.clientHeight });
    }
  }).observe(byId("chart-metric"));
}
