// The page put together: the head, the figures, the keyboard, and what is announced.

import { drawCharts, metricName, setAxis, setUpCharts } from "./charts.js";
import { drawFeed, filterBy, setUpFeed } from "./feed.js";
import { byId, number, seconds, setText, span } from "./format.js";
import { drawIncidents, endOf, setUpIncidents, startOf } from "./incidents.js";
import { drawMachines, setUpMachines } from "./machines.js";
import { drawScrub, goBy, goToIncident, lookAt, play, setUpScrub } from "./scrub.js";
import { changed, connect, now, onChange, shown, state } from "./state.js";

const LINKS = { connecting: "connecting", open: "live", lost: "connection lost, trying again" };
const ANNOUNCED = new Set(["machine.failed", "job.held", "job.failed", "job.completed", "switch.committed", "training.resumed"]);
let announced = null;

function drawHead() {
  const { job } = shown();
  const link = byId("link");
  const away = state.link === "open" && state.live && job && job.connected === false;
  const kind = away ? "away" : state.link === "open" && !state.live ? "recorded" : state.link;
  link.dataset.link = kind;
  setText(link.lastElementChild, away ? "the bus is away" : kind === "recorded" ? "recorded run" : LINKS[kind]);
  if (!job) return;
  const phase = byId("phase");
  phase.dataset.phase = job.phase;
  setText(phase, job.phase);
  setText("job-name", job.job || "no job yet");
  const until = job.ended_at ?? state.at ?? now();
  const note = job.submitted_at ? `for ${span(until - job.submitted_at)}` : "";
  setText("job-note", job.phase === "completed" ? `${job.steps} steps in ${span(until - job.submitted_at)}` : note);
  const told = job.phase === "failed" || (job.phase === "held" && job.reason) ? job.reason : "";
  const past = state.at === null ? "" : "This is the past.";
  byId("notice").hidden = !told && !past;
  byId("notice").dataset.kind = told ? "bad" : "past";
  setText("notice", told || `You are looking at the past. Press l, or ${state.live ? "Live" : "End"} below, to come back.`);
  document.title = `${job.phase === "training" && job.step !== null ? `step ${job.step} · ` : `${job.phase} · `}${job.job || "TrainMover"} · TrainMover`;
}

function drawTiles() {
  const { job, machines, incidents } = shown();
  if (!job) return;
  const there = machines.filter((row) => row.state !== "failed" && row.state !== "left");
  const training = there.filter((row) => row.state === "training").length;
  const parked = there.filter((row) => row.state === "parked").length;
  const warming = there.filter((row) => row.state === "warming" || row.state === "spare").length;
  const running = incidents.filter((row) => row.state === "open");
  const closed = incidents.filter((row) => row.state === "closed");
  const over = job.phase === "completed" || job.phase === "failed";
  const metric = metricName() ?? "loss";
  setText("tile-step", number(job.step));
  setText("tile-step-note", `epoch ${job.epoch}`);
  const all = over && job.steps && job.ended_at ? job.steps / (job.ended_at - job.submitted_at) : null;
  const rate = over && state.at === null ? all : job.steps_per_second;
  setText("tile-rate", rate === null ? "–" : rate.toFixed(2));
  const last = state.steps.at(-1);
  setText("tile-rate-note", rate === null ? (last ? "" : "no step yet") : over ? "on average, start to end" : `${seconds(1 / rate)} per step`);
  setText("tile-metric-label", metric === "loss" ? "Loss" : metric);
  setText("tile-metric", number(job.metrics[metric] ?? null));
  setText("tile-metric-note", job.step === null ? "" : `at step ${job.step}`);
  setText("tile-machines", over ? String(job.seats ?? "–") : `${training} / ${Math.max(training, job.seats ?? training)}`);
  setText("tile-machines-note", over ? `${machines.length} took part` : "training");
  setText("tile-standbys", over ? String(job.standbys ?? "–") : `${parked} / ${Math.max(parked, job.standbys ?? parked)}`);
  setText("tile-standbys-note", over ? `kept; ${closed.filter((row) => row.joiner).length} took a seat` : `${parked} warm${warming ? `, ${warming} warming up` : ""}`);
  setText("tile-incidents", running.length ? `${running.length} open` : String(closed.length));
  byId("tile-incidents").dataset.open = String(running.length > 0);
  const latest = closed.map((row) => [endOf(row), endOf(row) - startOf(row)]).sort((a, b) => b[0] - a[0])[0];
  setText("tile-incidents-note", running.length ? running[0].doing : latest ? `last took ${seconds(latest[1])}` : "none so far");
}

function announce() {
  const newest = state.facts.at(-1)?.number ?? 0;
  if (announced === null || state.link !== "open") {
    announced = newest; // nobody wants the whole past read out
    return;
  }
  const found = state.facts.filter((fact) => fact.number > announced && ANNOUNCED.has(fact.type));
  announced = newest;
  if (found.length) setText("say", found.map((fact) => fact.text).join(". "));
}

function draw() {
  drawHead();
  drawMachines();
  drawIncidents();
  drawFeed();
  drawCharts(lookAt);
  drawTiles();
  drawScrub();
  announce();
}

function toggleHelp() {
  const help = byId("help");
  if (help.open) help.close();
  else help.showModal();
}

function escape() {
  if (byId("filter").value) filterBy("");
  document.activeElement?.blur();
}

const KEYS = {
  "?": toggleHelp,
  t: () => window.toggleTheme(),
  l: () => lookAt(null),
  x: () => setAxis(),
  "/": () => byId("filter").focus(),
  m: () => byId("seats").querySelector("[tabindex='0']")?.focus(),
  i: () => (byId("incidents").querySelector("summary") ?? byId("incidents-title")).focus(),
  e: () => byId("feed").focus(),
  "[": () => goToIncident(-1),
  "]": () => goToIncident(1),
  " ": play,
  ArrowLeft: (event) => goBy(event.shiftKey ? -10 : -1),
  ArrowRight: (event) => goBy(event.shiftKey ? 10 : 1),
  Escape: escape,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const { target } = event;
  const typing = target.matches("input[type=search], select, textarea");
  if (typing && event.key !== "Escape") return;
  // What has the focus keeps its own keys.
  if (event.key === " " && target.matches("button, summary, a, input")) return;
  if (event.key.startsWith("Arrow") && target.matches("input, #feed")) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act(event);
});

byId("theme").addEventListener("click", () => window.toggleTheme());
byId("help-open").addEventListener("click", toggleHelp);
byId("help").addEventListener("click", (event) => { if (event.target === byId("help")) toggleHelp(); });
setUpMachines();
setUpIncidents(lookAt, (text) => { filterBy(text); byId("feed").focus(); });
setUpFeed();
setUpCharts();
setUpScrub();
onChange(draw);
setInterval(() => { if (state.live && state.link === "open" && !document.hidden) changed(); }, 1000);
connect();
