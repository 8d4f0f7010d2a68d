// @ts-check
// Draws the frames of dtnb.widgets.progress. Holds no truth: what it shows is the last frame, and what is open on this page.

/** @typedef {{n: number, total: ?number, unit: string, desc: string, rate: ?number, eta: ?number}} Bar */
/** @typedef {{last: number|string|null, points: (number|null)[]}} Series */
/** @typedef {{type: string, message: string, peer_loss: boolean, traceback: string}} Failure */
/** @typedef {{rank: number, state: string, host: string, fraction: ?number, bar: ?Bar, inner: ?Bar, scalars: Record<string, Series>, phase: string,
 *   rss: ?number, gpu: ?number, heard: ?number, line: string, error: ?Failure, spans: Record<string, [number, number]>}} Row */
/** @typedef {{id: string, name: string, state: string, reason: string, elapsed: ?number, left: ?number, fraction: ?number, stragglers: number[],
 *   root: ?number, world_size: number, attempt: number, hosts: number, trace?: string}} Job */
/** @typedef {{now: number, job: Job, rows: Row[], cells: ?DataView, metric: string, unit: string, text?: string, can?: string[]}} Frame */
/** @typedef {{get: (key: "frame") => Frame, on: (name: string, fn: () => void) => void, off: (name: string, fn: () => void) => void, send: (content: object) => void}} Model */

export const STATES = ["pending", "starting", "running", "done", "failed", "cancelled", "lost", "peer"];
const ENDED = new Set(["done", "failed", "cancelled", "lost"]);
const FIELDS = 7, SILENT = 15, ARMED = 4000, NO_ANSWER = 6000;

// ---- pure helpers, tested by node --test

/** Seconds in at most two units. @param {?number} s */
export function duration(s) {
  if (s == null || !Number.isFinite(s)) return "";
  const whole = Math.max(0, Math.round(s)), two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const d = Math.floor(whole / 86400), h = Math.floor(whole / 3600) % 24, m = Math.floor(whole / 60) % 60;
  return d ? `${d}d ${two(h)}h` : h ? `${h}h ${two(m)}m` : m ? `${m}m ${two(whole % 60)}s` : `${whole}s`;
}

/** Bytes in the unit that leaves at most four digits. @param {?number} b */
export function bytes(b) {
  if (b == null || !Number.isFinite(b)) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (b >= 1000 && i < units.length - 1) { b /= 1024; i++; }
  return `${i === 0 || b >= 100 ? b.toFixed(0) : b.toFixed(b >= 10 ? 1 : 2)} ${units[i]}`;
}

/** A rate; below one a second as seconds a unit. @param {?number} r @param {string} unit */
export function rate(r, unit = "it") {
  if (!r || !Number.isFinite(r)) return "";
  const short = (/** @type {number} */ x) => x >= 1000 ? count(Math.round(x)) : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
  return r >= 0.995 ? `${short(r)} ${unit}/s` : `${short(1 / r)} s/${unit}`;
}

/** @param {?number} n */
export function count(n) { return n == null ? "" : (Number.isInteger(n) ? n : Math.round(n * 100) / 100).toLocaleString("en-US"); }

/** Four significant digits, of a steady length. @param {number|string|null} x */
export function number(x) {
  if (x == null) return "";
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  return x === 0 ? "0" : size >= 1e5 || size < 1e-3 ? x.toExponential(2) : size >= 1000 ? x.toFixed(0) : x.toPrecision(4);
}

/** Rounded down: 100% is said when it is so. @param {?number} f */
export function percent(f) { return f == null ? "" : `${Math.floor(f * 100 + 1e-9)}%`; }

/** `[0, 1, 2, 5]` as `0-2, 5`; after `most` ranges the rest is a number. @param {number[]} ranks */
export function ranges(ranks, most = 6) {
  /** @type {number[][]} */ const runs = [];
  for (const r of [...ranks].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && r === last[1] + 1) last[1] = r; else runs.push([r, r]);
  }
  const left = runs.slice(most).reduce((sum, [a, b]) => sum + b - a + 1, 0);
  return runs.slice(0, most).map(([a, b]) => a === b ? `${a}` : `${a}-${b}`).join(", ") + (left ? ` and ${left} more` : "");
}

/** The `d` of a line through points; one that is not a number leaves a gap. @param {(number|null)[]} points */
export function sparkPath(points, width = 64, height = 16, pad = 1.5) {
  const known = /** @type {number[]} */ (points.filter(p => typeof p === "number" && Number.isFinite(p)));
  if (!known.length) return "";
  const low = Math.min(...known), high = Math.max(...known), step = points.length > 1 ? (width - 2 * pad) / (points.length - 1) : 0;
  let d = "", pen = false;
  points.forEach((p, i) => {
    if (typeof p !== "number" || !Number.isFinite(p)) { pen = false; return; }
    const y = high === low ? height / 2 : pad + (1 - (p - low) / (high - low)) * (height - 2 * pad);
    d += `${pen ? "L" : "M"}${+(pad + i * step).toFixed(2)} ${+y.toFixed(2)}`;
    pen = true;
  });
  return known.length === 1 ? d + "h0.01" : d;
}

/** The number to draw: the first that is a loss, else the first. @param {Record<string, Series>} scalars */
export function mainScalar(scalars) {
  const names = Object.keys(scalars ?? {});
  return names.find(n => n.toLowerCase().includes("loss")) ?? names[0] ?? null;
}

/** "2/3 · 120/500". @param {Row} row */
export function steps(row) {
  const said = (/** @type {Bar} */ b) => count(b.n) + (b.total ? `/${count(b.total)}` : ` ${b.unit}`);
  return [row.bar, row.inner].filter(b => b).map(b => said(/** @type {Bar} */ (b))).join(" · ");
}

/** An error in a line. @param {Failure} e */
export function inWords(e) {
  const message = e.message.trim().split("\n")[0];
  return ["Died", "Stopped", ""].includes(e.type) ? message : `${e.type}: ${message}`;
}

/** Cells that fill a width in few rows. @param {number} n @param {number} width */
export function gridFor(n, width) {
  for (const size of [18, 16, 14, 12, 10, 8, 6, 5, 4]) {
    const gap = size >= 10 ? 2 : 1, cols = Math.max(1, Math.floor((width + gap) / (size + gap))), rows = Math.ceil(n / cols);
    if (rows * (size + gap) <= 150 || size === 4) return { size, gap, cols, rows, width: Math.min(n, cols) * (size + gap) - gap, height: rows * (size + gap) - gap };
  }
  throw new Error("unreachable");
}

/** The cell under a point, or -1. @param {{size: number, gap: number, cols: number}} g @param {number} n @param {number} x @param {number} y */
export function cellAt(g, n, x, y) {
  const pitch = g.size + g.gap, col = Math.floor(x / pitch), i = Math.floor(y / pitch) * g.cols + col;
  return x < 0 || y < 0 || col >= g.cols || i >= n ? -1 : i;
}

/** One rank out of the binary table. @param {DataView} cells @param {number} i @param {string} metric @param {string} unit @returns {Row} */
export function cellRow(cells, i, metric, unit) {
  const at = (/** @type {number} */ k) => cells.getFloat32((i * FIELDS + k) * 4, true), or = (/** @type {number} */ x) => x < 0 ? null : x;
  const [state, fraction, n, total, speed, value, memory] = [0, 1, 2, 3, 4, 5, 6].map(at);
  return { rank: i, state: STATES[state] ?? "pending", host: "", fraction: or(fraction), phase: "", line: "", error: null, inner: null, heard: null, gpu: null, spans: {},
    bar: n < 0 ? null : { n, total: or(total), unit, desc: "", rate: or(speed), eta: null }, rss: or(memory),
    scalars: metric && !Number.isNaN(value) ? { [metric]: { last: value, points: [] } } : {} };
}

// ---- drawing

/** @param {string} tag @param {string} name @param {...(Node|string)} inside @returns {HTMLElement} */
function h(tag, name, ...inside) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (/^(button|input|select|textarea|canvas|pre|div)$/.test(tag)) node.setAttribute("data-lm-suppress-shortcuts", "true");   // JupyterLab asks the focused element first, and its own Enter and arrows stay out
  node.append(...inside);
  return node;
}

/** @param {Node} node @param {string} text */
function set(node, text) { if (node.textContent !== text) node.textContent = text; }
/** @param {Element} node @param {string} name @param {string} value */
function attr(node, name, value) { if (node.getAttribute(name) !== value) node.setAttribute(name, value); }

/** @param {number} width @param {number} height */
function sparkline(width, height) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [k, v] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, class: "dtnb-spark", "aria-hidden": "true" })) svg.setAttribute(k, String(v));
  svg.append(path);
  return { svg, draw: (/** @type {(number|null)[]} */ points) => attr(path, "d", sparkPath(points, width, height)) };
}

export function meter(/** @type {string} */ label) {
  const fill = h("div", "dtnb-fill"), bar = h("div", "dtnb-meter", fill);
  for (const [k, v] of Object.entries({ role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" })) bar.setAttribute(k, v);
  return { bar, draw(/** @type {?number} */ f) {
    bar.classList.toggle("dtnb-unknown", f == null);
    fill.style.width = `${(100 * (f ?? 0)).toFixed(2)}%`;
    if (f == null) bar.removeAttribute("aria-valuenow"); else attr(bar, "aria-valuenow", String(Math.floor(f * 100)));
  } };
}

/** What is shown of one rank when its lane is open. */
function detail() {
  const facts = h("div", "dtnb-facts"), charts = h("div", "dtnb-charts"), trace = h("pre", "dtnb-trace"), body = h("div", "dtnb-more", charts, facts, trace);
  trace.tabIndex = 0;
  const known = Object.fromEntries(["host", "loop", "inner loop", "time in", "memory", "last output", "error"].map(name => [name, { dt: h("span", "dtnb-quiet", name), dd: h("span", "dtnb-fact") }]));
  for (const { dt, dd } of Object.values(known)) facts.append(dt, dd);
  /** @type {Map<string, {last: HTMLElement, range: HTMLElement, line: ReturnType<typeof sparkline>}>} */ const drawn = new Map();
  const fact = (/** @type {string} */ name, /** @type {string} */ text) => {
    const f = known[name];
    set(f.dd, text);
    f.dt.hidden = f.dd.hidden = !text;
  };
  const chart = (/** @type {string} */ name, /** @type {Series} */ s) => {
    let c = drawn.get(name);
    if (!c) {
      c = { last: h("b", ""), range: h("span", "dtnb-quiet"), line: sparkline(168, 40) };
      drawn.set(name, c);
      charts.append(h("figure", "", h("figcaption", "", h("span", "dtnb-quiet", name), c.last, c.range), c.line.svg));
    }
    const known = /** @type {number[]} */ (s.points.filter(p => p != null));
    set(c.last, number(s.last));
    set(c.range, known.length > 1 ? `${number(Math.min(...known))} to ${number(Math.max(...known))}` : "");
    c.line.draw(s.points);
  };
  return { body, draw(/** @type {Row} */ row) {
    for (const [name, s] of Object.entries(row.scalars)) chart(name, s);
    const spent = Object.entries(row.spans).sort((a, b) => b[1][1] - a[1][1]).slice(0, 6);
    fact("host", row.host);
    for (const [name, b] of /** @type {[string, ?Bar][]} */ ([["loop", row.bar], ["inner loop", row.inner]]))
      fact(name, b ? [b.desc, count(b.n) + (b.total ? ` of ${count(b.total)}` : ""), rate(b.rate, b.unit), b.eta && !ENDED.has(row.state) ? `${duration(b.eta)} left` : ""].filter(x => x).join(" · ") : "");
    fact("time in", spent.map(([name, [n, s]]) => `${name} ${duration(s) || "0s"} (${count(n)}×)`).join(" · "));
    fact("memory", [row.gpu != null ? `GPU ${bytes(row.gpu)}` : "", row.rss != null ? `host ${bytes(row.rss)}` : ""].filter(x => x).join(" · "));
    fact("last output", row.line);
    set(trace, row.error && !row.error.peer_loss ? row.error.traceback.trimEnd() : "");
    trace.hidden = !trace.textContent;
    fact("error", row.error && trace.hidden ? inWords(row.error) : "");
  } };
}

let ids = 0;

/** A rank's lane. @param {number} rank */
function lane(rank) {
  const id = `dtnb-more-${++ids}`, button = h("button", "dtnb-rank", h("span", "dtnb-dot"), h("span", "dtnb-label", String(rank)));
  const names = ["host", "state", "step", "rate", "value", "memory", "line"];
  /** @type {Record<string, HTMLElement>} */ const cell = Object.fromEntries(names.map(n => [n, h("span", `dtnb-${n}`)]));
  const badge = h("span", "dtnb-badge"), word = h("span", ""), bar = meter(`progress of rank ${rank}`), line = sparkline(72, 16), more = detail();
  cell.state.append(word, badge);
  const row = h("div", "dtnb-row", button, cell.host, cell.state, bar.bar, cell.step, cell.rate, cell.value, line.svg, cell.memory, cell.line), item = h("div", "dtnb-lane", row);
  item.setAttribute("role", "listitem");
  more.body.id = id;
  attr(button, "aria-expanded", "false");
  attr(button, "aria-label", `rank ${rank}`);
  attr(button, "aria-controls", id);
  /** @type {?Row} */ let now = null;
  const self = {
    item, button, rank,
    get open() { return button.getAttribute("aria-expanded") === "true"; },
    toggle(open = !self.open) {
      attr(button, "aria-expanded", String(open));
      if (open) { if (now) more.draw(now); item.append(more.body); } else more.body.remove();
    },
    draw(/** @type {Row} */ r, /** @type {Frame} */ frame) {
      now = r;
      const late = frame.job.stragglers.includes(r.rank), peer = r.state === "peer" || !!r.error?.peer_loss && frame.job.root !== r.rank, over = ENDED.has(r.state);
      const quiet = !over && r.heard ? frame.now - r.heard : 0, name = mainScalar(r.scalars), s = name ? r.scalars[name] : null;
      attr(item, "data-tone", peer ? "peer" : late ? "late" : r.state);
      set(word, peer ? "peer lost" : r.phase && !over ? r.phase : r.state);
      set(badge, quiet > SILENT ? `silent ${duration(quiet)}` : late ? "behind" : "");
      set(cell.host, frame.job.hosts > 1 ? r.host : "");
      bar.draw(r.fraction);
      set(cell.step, steps(r));
      set(cell.rate, over ? "" : rate((r.inner ?? r.bar)?.rate ?? null, (r.inner ?? r.bar)?.unit));
      set(cell.value, name && s ? `${name} ${number(s.last)}` : "");
      cell.value.classList.toggle("dtnb-bad", typeof s?.last === "string");
      line.draw(s?.points ?? []);
      set(cell.memory, bytes(r.gpu ?? r.rss));
      set(cell.line, r.error ? inWords(r.error) : r.line);
      if (self.open) more.draw(r);
    },
  };
  row.addEventListener("click", e => { if (!window.getSelection()?.toString() || e.target === button) self.toggle(); });
  return self;
}

/** The heat strip: a cell a rank, filled as far as the rank is. @param {(rank: number) => void} pick */
function strip(pick) {
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", "dtnb-cells")), counts = h("span", "dtnb-counts"), readout = h("span", "dtnb-readout"), body = h("div", "dtnb-strip", canvas, h("div", "dtnb-under", counts, readout));
  canvas.tabIndex = 0;
  for (const [k, v] of Object.entries({ role: "slider", "aria-label": "rank", "aria-valuemin": "0" })) canvas.setAttribute(k, v);
  /** @type {?Frame} */ let frame = null;
  let at = -1, hover = -1, chosen = -1, grid = gridFor(1, 100);
  const total = () => frame?.cells ? frame.cells.byteLength / 4 / FIELDS : 0;
  const say = (/** @type {number} */ i) => {
    if (i < 0 || !frame?.cells) return "";
    const r = cellRow(frame.cells, i, frame.metric, frame.unit), late = frame.job.stragglers.includes(i);
    return [`rank ${i}`, r.state === "peer" ? "peer lost" : r.state + (late ? ", behind" : ""), percent(r.fraction), steps(r), ENDED.has(r.state) ? "" : rate(r.bar?.rate ?? null, frame.unit),
      frame.metric in r.scalars ? `${frame.metric} ${number(r.scalars[frame.metric].last)}` : "", bytes(r.rss)].filter(x => x).join(" · ");
  };
  const paint = () => {
    const width = body.clientWidth, n = total(), ctx = canvas.getContext("2d");
    if (!frame?.cells || !width || !ctx) return;
    grid = gridFor(n, width);
    const dpr = window.devicePixelRatio || 1, w = Math.round(grid.width * dpr), tall = Math.round(grid.height * dpr), style = getComputedStyle(canvas);
    if (canvas.width !== w || canvas.height !== tall) { canvas.width = w; canvas.height = tall; canvas.style.width = `${grid.width}px`; canvas.style.height = `${grid.height}px`; }
    const hue = Object.fromEntries([...STATES, "late", "ink"].map(s => [s, style.getPropertyValue(`--dtnb-${s}`).trim() || "gray"])), late = new Set(frame.job.stragglers);
    /** @type {Record<string, number>} */ const seen = {};
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, grid.width, grid.height);
    for (let i = 0; i < n; i++) {
      const code = STATES[frame.cells.getFloat32(i * FIELDS * 4, true)] ?? "pending", f = frame.cells.getFloat32((i * FIELDS + 1) * 4, true);
      const tone = late.has(i) ? "late" : code, x = (i % grid.cols) * (grid.size + grid.gap), y = Math.floor(i / grid.cols) * (grid.size + grid.gap);
      const full = code === "failed" || code === "lost" ? 1 : Math.max(0, f);
      seen[tone] = (seen[tone] ?? 0) + 1;
      ctx.fillStyle = hue[tone];
      ctx.globalAlpha = code === "pending" ? 0.16 : 0.26;
      ctx.fillRect(x, y, grid.size, grid.size);
      ctx.globalAlpha = 0.92;
      const up = Math.round(full * grid.size * dpr) / dpr;
      ctx.fillRect(x, y + grid.size - up, grid.size, up);
      ctx.globalAlpha = 1;
      if (i === hover || i === at || i === chosen) { ctx.strokeStyle = hue.ink; ctx.lineWidth = 2; ctx.strokeRect(x - 0.5, y - 0.5, grid.size + 1, grid.size + 1); }
    }
    const words = ["failed", "lost", "late", "running", "starting", "pending", "done", "cancelled", "peer"].filter(s => seen[s]);
    counts.replaceChildren(...words.map(s => { const e = h("span", "dtnb-count", h("i", ""), `${count(seen[s])} ${s === "late" ? "behind" : s === "peer" ? "peer lost" : s}`); e.dataset.tone = s; return e; }));
    set(readout, say(hover >= 0 ? hover : at));
  };
  const move = (/** @type {number} */ i) => {
    at = Math.max(0, Math.min(total() - 1, i));
    attr(canvas, "aria-valuenow", String(at));
    attr(canvas, "aria-valuetext", say(at));
    paint();
  };
  canvas.addEventListener("mousemove", e => { const i = cellAt(grid, total(), e.offsetX, e.offsetY); if (i !== hover) { hover = i; paint(); } });
  canvas.addEventListener("mouseleave", () => { hover = -1; paint(); });
  canvas.addEventListener("focus", () => { if (at < 0 && canvas.matches(":focus-visible")) move(0); });
  canvas.addEventListener("blur", () => { at = -1; paint(); });
  canvas.addEventListener("click", e => { const i = cellAt(grid, total(), e.offsetX, e.offsetY); if (i >= 0) { chosen = at = i; pick(i); paint(); } });
  canvas.addEventListener("keydown", e => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid.cols, ArrowUp: -grid.cols, Home: -Infinity, End: Infinity }[e.key];
    if (by != null) move(Number.isFinite(by) ? at + by : by > 0 ? total() - 1 : 0);
    else if ((e.key === "Enter" || e.key === " ") && at >= 0) { chosen = at; pick(at); paint(); }
    else return;
    e.preventDefault();
  });
  return { body, paint, choose(/** @type {number} */ i) { chosen = i; }, draw(/** @type {Frame} */ f) { frame = f; attr(canvas, "aria-valuemax", String(total() - 1)); paint(); } };
}

/** The button that asks twice: a slip must not end a run of two days. @param {() => void} ask */
export function cancelButton(ask) {
  const button = /** @type {HTMLButtonElement} */ (h("button", "dtnb-cancel", "Cancel"));
  let state = "idle", timer = 0;
  const become = (/** @type {string} */ next, /** @type {string} */ text, title = "Stop every rank of this job") => {
    state = next; button.dataset.state = next; button.title = title; button.disabled = next === "sent"; set(button, text); clearTimeout(timer);
  };
  become("idle", "Cancel");
  button.addEventListener("click", () => {
    if (state !== "armed") { become("armed", "Really cancel?"); timer = window.setTimeout(() => become("idle", "Cancel"), ARMED); return; }
    ask();
    become("sent", "Cancelling…");
    timer = window.setTimeout(() => become("late", "No answer yet", "The kernel is busy: interrupt the cell (■), or press again"), NO_ANSWER);
  });
  return { button, stop: () => clearTimeout(timer) };
}

/** The button that asks for a trace of the next steps; while one is made it says so. @param {() => void} ask */
function traceButton(ask) {
  const button = /** @type {HTMLButtonElement} */ (h("button", "dtnb-trace-button", "Trace"));
  let asked = 0;
  button.title = "Record a trace of the next 5 steps on every rank";
  button.addEventListener("click", () => { asked = performance.now(); ask(); button.disabled = true; });
  return { button, draw(/** @type {Frame} */ f) {
    const going = /^(tracing|writing)/.test(f.job.trace ?? "");
    button.hidden = !f.can?.includes("trace") || f.job.state !== "running";
    button.disabled = going || performance.now() - asked < 1500;
    set(button, going ? "Tracing…" : "Trace");
  } };
}

/** @param {{model: Model, el: HTMLElement}} props */
function render({ model, el }) {
  const dot = h("span", "dtnb-dot"), name = h("b", "dtnb-name"), state = h("span", "dtnb-word"), note = h("span", "dtnb-note"), part = h("span", "dtnb-percent"), time = h("span", "dtnb-time");
  const cancel = cancelButton(() => model.send({ request: "cancel" })), trace = traceButton(() => model.send({ request: "trace" })), bar = meter("progress of the job"), heat = strip(pick);
  const head = h("div", "dtnb-head", dot, name, state, note, part, time, trace.button, cancel.button), lanes = h("div", "dtnb-lanes"), tail = h("pre", "dtnb-tail"), live = h("div", "dtnb-live");
  const root = h("div", "dtnb-progress", head, bar.bar, heat.body, lanes, tail, live);
  bar.bar.classList.add("dtnb-job");
  lanes.setAttribute("role", "list");
  live.setAttribute("aria-live", "polite");
  el.append(root);

  /** @type {Map<number, ReturnType<typeof lane>>} */ const shown = new Map();
  let received = 0, said = "", opened = /** @type {?number} */ (null), chosen = -1, waiting = 0, gone = false;

  /** @param {number} rank */
  function pick(rank) {
    chosen = rank;
    model.send({ request: "detail", rank });
    draw();
    shown.get(rank)?.toggle(true);
  }

  function clock() {
    const { job } = model.get("frame"), over = ENDED.has(job?.state), more = over || gone ? 0 : (performance.now() - received) / 1000;
    if (!job) return;
    set(time, [job.elapsed == null ? "" : duration(job.elapsed + more), job.left == null || over ? "" : `${duration(Math.max(0, job.left - more))} left`].filter(x => x).join(" · "));
  }

  /** @param {Job} job */
  function drawHead(job) {
    const failed = job.root != null && job.state === "failed", over = ENDED.has(job.state), left = gone && !over, words = left ? "not followed any more" : failed ? `failed on rank ${job.root}` : job.state;
    attr(root, "data-state", job.state);
    attr(head, "data-tone", left ? "cancelled" : job.state);
    root.classList.toggle("dtnb-gone", left);
    set(name, job.name || job.id || "job");
    set(state, words);
    set(note, left ? "its kernel has gone or restarted; this is the last that it told" : [job.stragglers.length ? `rank${job.stragglers.length > 1 ? "s" : ""} ${ranges(job.stragglers, 3)} behind` : "", job.trace ?? "", failed ? "" : job.reason, job.attempt ? `attempt ${job.attempt + 1}` : ""].filter(x => x).join(" · "));
    set(part, percent(job.fraction));
    bar.draw(job.fraction);
    cancel.button.hidden = over || left;
    if (said !== words) { said = words; live.textContent = `${job.name || "job"} ${words}`; clock(); }
  }

  /** @param {Frame} f */
  function drawLanes(f) {
    const rows = [...f.rows], there = new Set(rows.map(r => r.rank));
    if (f.cells && chosen >= 0 && !there.has(chosen)) rows.push(cellRow(f.cells, chosen, f.metric, f.unit));
    rows.forEach((r, i) => {
      let l = shown.get(r.rank);
      if (!l) { l = lane(r.rank); shown.set(r.rank, l); l.button.tabIndex = shown.size === 1 ? 0 : -1; }
      if (lanes.children[i] !== l.item) lanes.insertBefore(l.item, lanes.children[i] ?? null);
      l.draw(r, f);
    });
    for (const [rank, l] of shown) if (!rows.some(r => r.rank === rank) && !l.open) { l.item.remove(); shown.delete(rank); }
    if (f.job.root != null && f.job.root !== opened) { opened = f.job.root; shown.get(opened)?.toggle(true); }
  }

  function draw() {
    waiting = 0;
    const f = model.get("frame");
    if (!f?.job) return;
    root.classList.toggle("dtnb-many", !!f.cells);
    drawHead(f.job);
    trace.draw(f);
    if (gone) trace.button.hidden = true;
    if (f.cells) heat.draw(f);
    drawLanes(f);
    set(tail, f.text ?? "");
    tail.hidden = !f.text;
  }

  const changed = () => { received = performance.now(); waiting ||= requestAnimationFrame(draw); };
  const again = () => heat.paint();
  lanes.addEventListener("keydown", e => {
    const all = [...shown.values()].sort((a, b) => a.item.compareDocumentPosition(b.item) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1), i = all.findIndex(l => l.button === e.target);
    const to = { ArrowDown: i + 1, ArrowUp: i - 1, Home: 0, End: all.length - 1 }[e.key];
    if (i < 0 || to == null || !all[to]) return;
    e.preventDefault();
    all.forEach(l => { l.button.tabIndex = -1; });
    all[to].button.tabIndex = 0;
    all[to].button.focus();
  });
  const size = new ResizeObserver(again), theme = new MutationObserver(again), tick = setInterval(clock, 1000);
  size.observe(root);
  theme.observe(document.body, { attributes: true });
  const left = () => { gone = true; draw(); };   // nobody sends frames any more, and nobody hears the button
  model.on("change:frame", changed);
  model.on("comm_live_update", left);
  received = performance.now();
  draw();
  clock();
  return () => {
    model.off("change:frame", changed);
    model.off("comm_live_update", left);
    cancelAnimationFrame(waiting);
    clearInterval(tick);
    cancel.stop();
    size.disconnect();
    theme.disconnect();
  };
}

export default { render };
