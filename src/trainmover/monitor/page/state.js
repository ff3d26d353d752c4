// What the page knows: the live picture, and the moment that is looked at.

export const state = {
  live: true,          // more will come
  link: "connecting",  // connecting, open, lost
  first: null, last: null, skew: 0,
  job: null,
  layout: [],          // machine by seat, as of the last switch
  machines: new Map(),
  incidents: new Map(),
  facts: [],           // oldest first
  steps: [],           // [time, step, epoch, seconds, metrics]
  marks: [],
  moment: null,        // the picture of an earlier time, or null
  at: null,            // that time in unix seconds, or null
};

const listeners = new Set();
const STEPS = 8192;
const FACTS = 5000;

export const onChange = (listener) => listeners.add(listener);

let due = false;
/** Draws everything once in the next frame, however much has changed. */
export function changed() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    for (const listener of listeners) listener();
  });
}

/** Unix seconds now, by the monitor's clock. */
export const now = () => (state.live ? Date.now() / 1000 + state.skew : (state.last ?? 0));

export function hello(data) {
  state.live = data.live;
  state.skew = data.now - Date.now() / 1000;
  state.first = data.first;
  state.last = data.last;
  state.job = data.job;
  state.layout = data.layout;
  state.machines = new Map(data.machines.map((row) => [row.name, row]));
  state.incidents = new Map(data.incidents.map((row) => [row.id, row]));
  state.facts = data.facts;
  state.steps = data.steps;
  state.marks = data.marks;
  state.link = "open";
  changed();
}

export function delta(data) {
  state.last = data.last ?? state.last;
  state.first ??= data.last;
  if (data.job) state.job = data.job;
  if (data.layout) state.layout = data.layout;
  for (const row of data.machines ?? []) state.machines.set(row.name, row);
  for (const id of data.gone ?? []) state.incidents.delete(id);
  for (const row of data.incidents ?? []) state.incidents.set(row.id, row);
  if (data.facts) state.facts.push(...data.facts);
  if (state.facts.length > FACTS) state.facts.splice(0, state.facts.length - FACTS);
  if (data.marks) state.marks.push(...data.marks);
  if (data.steps) {
    state.steps.push(...data.steps);
    if (state.steps.length > STEPS) {
      const half = state.steps.length >> 1;
      state.steps = state.steps.filter((_, place) => place >= half || place % 2 === 0);
    }
  }
  changed();
}

/** What is shown: the moment that is looked at, else now. */
export function shown() {
  const { moment } = state;
  if (moment === null) {
    return { job: state.job, layout: state.layout, machines: [...state.machines.values()], incidents: [...state.incidents.values()] };
  }
  return moment;
}

let asked = 0;
let waiting = null;

/** Looks at an earlier moment (null: now); quick successions ask the server one at a time. */
export async function lookAt(time) {
  state.at = time;
  asked += 1;
  if (time === null) {
    state.moment = null;
    changed();
    return;
  }
  changed();
  if (waiting !== null) return;
  waiting = (async () => {
    let served = -1;
    while (state.at !== null && served !== asked) {
      served = asked;
      try {
        const answer = await fetch(`/api/at?time=${state.at}`);
        if (!answer.ok) break;
        const moment = await answer.json();
        if (state.at !== null) state.moment = moment;
        changed();
      } catch {
        break; // the stream tells that the monitor is away
      }
    }
    waiting = null;
  })();
  await waiting;
}

/** Older facts than the oldest one here; false when there are none. */
export async function older() {
  const before = state.facts[0]?.number;
  if (!before || before <= 1) return false;
  const answer = await fetch(`/api/facts?before=${before}&limit=1000`);
  const { facts } = await answer.json();
  state.facts.unshift(...facts);
  changed();
  return facts.length > 0;
}

export function connect() {
  const source = new EventSource("/api/stream");
  source.addEventListener("hello", (event) => hello(JSON.parse(event.data)));
  source.addEventListener("delta", (event) => delta(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    state.link = "lost";
    changed();
    // A refused connection is not tried again by the browser itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
}
