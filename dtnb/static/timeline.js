// @ts-check
// Draws a timeline of dtnb.widgets.timeline: many ranks' traces on one clock. It stands alone: a widget loads it through a URL, a saved page holds its text.

/** @typedef {{label: string, kind: string, pid: string, tid: string}} Track */
/** @typedef {{track: number, depth: number, from: number, n: number}} Row */
/** @typedef {{n: number, ts: Float64Array, dur: Float64Array|Uint32Array, name: Uint16Array|Uint32Array, args: Uint16Array|Uint32Array, cum: Float64Array, peak: Uint32Array,
 *   names: [string, string][], argsTable: string[], tracks: Track[], rows: Row[], memory: Record<string, [number[], number[]]>, meta: Record<string, any>, from: number, to: number}} Trace */
/** @typedef {{cover: Uint8Array, name: Uint16Array, bins: number, from: number, to: number}} Bins */
/** @typedef {{rank: number, host: string, label: string, offset: number, events: number, classes: number[], names: [string, string][], tracks: Track[], rows: [number, number, number][],
 *   steps: [number, number, number][], memory: Record<string, [number[], number[]]>}} RankInfo */
/** @typedef {{rank: number, step: number, compute: number, exposed: number, overlapped: number, data: number, optimizer: number, other: number, last: number, caused: number}} Share */
/** @typedef {{title: string, span: number, events: number, bins: number, room: number, ranks: RankInfo[], sentence: string, notes: string[], shares: Share[], heat: {steps: number[], own: number[][], total: number[][]},
 *   collectives: {names: string[], name: number[], step: number[], n: number, by: string}, moment: string, link: string}} Scene */
/** @typedef {{scene: Scene, traces: (Trace|Bins)[], times: ?DataView}} Data */
/** @typedef {{scene: Scene, times: DataView, packed: DataView[], traces: ?Promise<Trace[]>}} Kept */
/** @typedef {{open: () => Promise<Data>, range: null|((a: number, b: number) => Promise<?DataView[]>), find: null|((text: string, t: number, r: number, row: number, way: number) => Promise<any>), link: (moment: string) => string, close: ?(() => void)}} Source */
/** @typedef {{r: number, row: number, ts: number, dur: number, name: number, args: string}} Hit */
/** @typedef {{color: Uint32Array, dim: Uint32Array, hit: ?Uint8Array, bg: number}} Look */

export const CLASSES = ["other", "compute", "backward", "comm", "data", "optimizer", "copy", "span", "python"];
const CLASS_WORDS = ["other", "compute", "backward", "communication", "data loading", "optimizer", "copies", "spans", "Python"];
const PARTS = /** @type {const} */ (["compute", "exposed", "data", "optimizer", "other"]);
const PART_WORDS = { compute: "compute", exposed: "communication, exposed", overlapped: "communication, overlapped", data: "data loading", optimizer: "optimizer", other: "other" };
const BLOCK = 16, FAINT = 0.2, ROW = 17, HEAD = 24, THIN = 5, DEEP = 14, GAP = 5, MEMORY = 30, MIN_SPAN = 50, FORGET = 300_000;

// ---- columns: the bytes of dtnb.trace.columns

/** @param {Uint8Array} bytes */
async function inflate(bytes) {
  const stream = new DecompressionStream("deflate"), writer = stream.writable.getWriter(), quiet = () => {};       // what is damaged is told to the reader
  writer.write(/** @type {any} */ (bytes)).catch(quiet);
  writer.close().catch(quiet);
  return new Uint8Array(await new Response(stream.readable).arrayBuffer());
}

/** A column out of its byte planes, as numbers of 2, 4 or (a width above 4) 8 bytes. @param {Uint8Array} b @param {number} at @param {number} n @param {number} width @param {number} least @returns {any} */
function planes(b, at, n, width, least) {
  if (width > 4) {
    const out = new Float64Array(n);
    for (let p = 0, scale = 1; p < width; p++, scale *= 256) for (let i = 0, from = at + p * n; i < n; i++) out[i] += b[from + i] * scale;
    return out;
  }
  const size = Math.max(least, width > 2 ? 4 : 2), out = new Uint8Array(n * size);                       // little-endian, as the pixels are
  for (let p = 0; p < width; p++) for (let i = at + p * n, end = i + n, to = p; i < end; i++, to += size) out[to] = b[i];
  return size > 2 ? new Uint32Array(out.buffer) : new Uint16Array(out.buffer);
}

/** The bytes that Python's `pack` wrote. @param {DataView|Uint8Array|ArrayBuffer} data @returns {Promise<Trace>} */
export async function decode(data) {
  const u8 = data instanceof ArrayBuffer ? new Uint8Array(data) : new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  if (new TextDecoder().decode(u8.subarray(0, 8)) !== "DTNBCOL1") throw new Error("these are not columns of dtnb's");
  const size = new DataView(u8.buffer, u8.byteOffset).getUint32(8, true);
  const [head, body] = await Promise.all([inflate(u8.subarray(12, 12 + size)), inflate(u8.subarray(12 + size))]);
  const h = JSON.parse(new TextDecoder().decode(head)), n = /** @type {number} */ (h.n);
  /** @type {any} */ const got = {};
  let at = 0;
  for (const [key, width] of h.columns) {
    got[key] = planes(body, at, n, width, key === "ts" || key === "dur" ? 4 : 2);
    at += width * n;
  }
  let from = 0;
  const rows = h.rows.map((/** @type {number[]} */ [track, depth, count]) => { const row = { track, depth, from, n: count }; from += count; return row; });
  const ts = new Float64Array(n);
  for (const r of rows) for (let i = r.from, t = 0; i < r.from + r.n; i++) ts[i] = t += got.ts[i];
  return finish({ n, ...got, ts, names: h.names, argsTable: h.args, tracks: h.tracks, rows, memory: h.memory, meta: h.meta, from: 0, to: 0, cum: none, peak: none });
}
const none = /** @type {any} */ (null);

/** Sums and longest events, so that any range is answered at once. @param {Trace} t */
function finish(t) {
  const { n, dur } = t, cum = t.cum = new Float64Array(n + 1), peak = t.peak = new Uint32Array(Math.ceil(n / BLOCK));
  for (let i = 0, sum = 0; i < n;) { sum += dur[i]; cum[++i] = sum; }
  for (let k = 0; k < peak.length; k++) {
    let best = k * BLOCK;
    for (let i = best + 1, end = Math.min(n, best + BLOCK); i < end; i++) if (dur[i] > dur[best]) best = i;
    peak[k] = best;
  }
  for (const r of t.rows) if (r.n) t.to = Math.max(t.to, t.ts[r.from + r.n - 1] + t.dur[r.from + r.n - 1]);
  return t;
}

/** The first place in `lo..hi` whose value is not below `x`. @param {ArrayLike<number>} a @param {number} x @param {number} lo @param {number} hi */
export function lower(a, x, lo, hi) {
  while (lo < hi) { const m = (lo + hi) >>> 1; if (a[m] < x) lo = m + 1; else hi = m; }
  return lo;
}

/** The first event of a row that ends after `x`. @param {Trace} t @param {Row} row @param {number} x */
export function firstAfter(t, row, x) {
  const i = lower(t.ts, x, row.from, row.from + row.n);
  return i > row.from && t.ts[i - 1] + t.dur[i - 1] > x ? i - 1 : i;
}

/** Nanoseconds of `a..b` in which the row has an event: exact. @param {Trace} t @param {Row} row @param {number} a @param {number} b */
export function coverage(t, row, a, b) {
  const i = firstAfter(t, row, a), j = lower(t.ts, b, i, row.from + row.n);
  return j <= i ? 0 : t.cum[j] - t.cum[i] - Math.max(0, a - t.ts[i]) - Math.max(0, t.ts[j - 1] + t.dur[j - 1] - b);
}

/** Of the events `i..j` the one that has most of `a..b`. @param {Trace} t @param {number} i @param {number} j @param {number} a @param {number} b */
export function longest(t, i, j, a, b) {
  const { ts, dur, peak } = t, last = j - 1;
  let best = i, most = Math.min(b, ts[i] + dur[i]) - Math.max(a, ts[i]);
  if (last > i) { const d = Math.min(b, ts[last] + dur[last]) - ts[last]; if (d > most) { most = d; best = last; } }
  let k = i + 1;
  while (k < last && k % BLOCK) { if (dur[k] > most) { most = dur[k]; best = k; } k++; }
  for (; k + BLOCK <= last; k += BLOCK) { const p = peak[k / BLOCK]; if (dur[p] > most) { most = dur[p]; best = p; } }
  for (; k < last; k++) if (dur[k] > most) { most = dur[k]; best = k; }
  return best;
}

/** Two colours, 0xAABBGGRR; `w` of 256 parts of the first. @param {number} c @param {number} b @param {number} w */
export function blend(c, b, w) {
  const i = 256 - w;
  return (0xff000000 | ((((c & 0xff00ff) * w + (b & 0xff00ff) * i) >>> 8) & 0xff00ff) | ((((c & 0xff00) * w + (b & 0xff00) * i) >>> 8) & 0xff00)) >>> 0;
}

/** How strong a pixel is in which `part` is covered: what is there is seen, however short. @param {number} part */
export function strength(part) { return part <= 0 ? 0 : Math.round(256 * (FAINT + (1 - FAINT) * Math.min(1, part))); }

/** One line of pixels: of a row, from time `a`, with `k` pixels a nanosecond. Wide events are told to `wide` as [event, x, end].
 * @param {Trace} t @param {Row} row @param {number} a @param {number} k @param {Uint32Array} line @param {Look} look @param {?number[]} wide @param {?Uint32Array} hits */
export function scan(t, row, a, k, line, look, wide, hits) {
  const { ts, dur, cum, name } = t, W = line.length, end = row.from + row.n, step = 1 / k, { bg, hit } = look;
  line.fill(bg);
  let i = firstAfter(t, row, a), px = 0, h = hits ? lower(hits, i, 0, hits.length) : 0;
  while (i < end && px < W) {
    const p0 = a + px * step, p1 = a + (px + 1) * step, s = ts[i], e = s + dur[i];
    if (e <= p0) { i++; continue; }
    if (s >= p1) { px = Math.max(px + 1, Math.min(W, Math.floor((s - a) * k))); continue; }
    if (s <= p0 && e >= p1) {                                     // this pixel and perhaps more are full
      const to = Math.max(px + 1, Math.min(W, Math.floor((e - a) * k + 1e-9))), id = name[i], c = hit && !hit[id] ? look.dim[id] : look.color[id];
      line.fill(c, px, to);
      const left = Math.max(0, Math.round((s - a) * k));
      if (to - px >= 5) { if (px - left <= 1 && s > a) line[px] = blend(c, bg, 150); if (wide && to - left >= 26) wide.push(i, Math.max(px, left), to); }
      px = to;
      continue;
    }
    let j = i + 1, jump = 1;
    while (j < end && ts[j] < p1) { j += jump; jump *= 2; }
    j = lower(ts, p1, Math.min(i + 1, end), Math.min(j, end));
    const over = ts[j - 1] + dur[j - 1] - p1, part = (cum[j] - cum[i] - Math.max(0, p0 - s) - Math.max(0, over)) * k;
    if (hit) {
      while (hits && h < hits.length && hits[h] < i) h++;
      const found = hits && h < hits.length && hits[h] < j, id = name[found ? hits[h] : longest(t, i, j, p0, p1)];
      line[px] = blend(found ? look.color[id] : look.dim[id], bg, found ? 256 : strength(part));
    } else line[px] = blend(look.color[name[longest(t, i, j, p0, p1)]], bg, strength(part));
    i = over > 0 ? j - 1 : j;
    px++;
  }
}

/** The same from bins, where the events themselves are not here. @param {Bins} b @param {number} row @param {number} a @param {number} k @param {Uint32Array} line @param {Look} look */
export function scanBins(b, row, a, k, line, look) {
  const scale = b.bins / (b.to - b.from), at = row * b.bins, { hit, bg } = look;
  for (let px = 0; px < line.length; px++) {
    const x0 = (a + px / k - b.from) * scale, x1 = x0 + scale / k, lo = Math.max(0, Math.floor(x0)), hi = Math.min(b.bins, Math.ceil(x1));
    let sum = 0, width = 0, most = 0, id = 0;
    for (let i = lo; i < hi; i++) {
      const w = Math.min(x1, i + 1) - Math.max(x0, i), c = b.cover[at + i] * w;
      sum += c; width += w;
      if (c > most) { most = c; id = b.name[at + i]; }
    }
    line[px] = sum ? blend(hit && !hit[id] ? look.dim[id] : look.color[id], bg, strength(sum / 255 / (x1 - x0))) : bg;
  }
}

// ---- words

/** Nanoseconds in the unit that fits. @param {number} ns */
export function time(ns) {
  const x = Math.abs(ns), f = (/** @type {number} */ v, /** @type {string} */ u) => `${v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2)} ${u}`;
  return (ns < 0 ? "−" : "") + (x < 999.5 ? `${Math.round(x)} ns` : x < 999.5e3 ? f(x / 1e3, "µs") : x < 999.5e6 ? f(x / 1e6, "ms") : x < 6e10 ? `${(x / 1e9).toFixed(x < 1e10 ? 3 : 2)} s` : `${Math.floor(x / 6e10)} min ${((x % 6e10) / 1e9).toFixed(1)} s`);
}

/** Steps of 1, 2 or 5 that give about `n` ticks. @param {number} span @param {number} n */
export function tick(span, n) {
  const raw = span / Math.max(1, n), base = 10 ** Math.floor(Math.log10(raw)), m = raw / base;
  return base * (m <= 1 ? 1 : m <= 2 ? 2 : m <= 5 ? 5 : 10);
}

/** A time with as many digits as the distance of ticks needs, in the unit of the largest one. @param {number} t @param {number} step @param {number} most */
export function tickLabel(t, step, most) {
  const [unit, word] = most >= 1e9 ? [1e9, "s"] : most >= 1e6 ? [1e6, "ms"] : most >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return t === 0 ? "0" : `${t < 0 ? "−" : ""}${(Math.abs(t) / unit).toFixed(Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit) - 1e-9))))} ${word}`;
}

/** Where ticks count from: 0, or deep inside a long trace a round moment before the view. @param {number} a @param {number} b */
export function tickBase(a, b) {
  const round = 10 ** Math.ceil(Math.log10(b - a));
  return a > 20 * round ? Math.floor(a / round) * round : 0;
}

/** @param {number} b */
export function bytes(b) {
  for (const u of ["B", "KiB", "MiB", "GiB"]) { if (b < 1000) return `${u === "B" || b >= 100 ? b.toFixed(0) : b.toPrecision(3)} ${u}`; b /= 1024; }
  return `${b.toPrecision(3)} TiB`;
}

const count = (/** @type {number} */ n) => n.toLocaleString("en-US");

/** What an event was called with, as [key, value] of text. @param {string} text @returns {[string, string][]} */
export function argsOf(text) {
  if (!text) return [];
  try { return Object.entries(JSON.parse(text)).map(([k, v]) => [k, typeof v === "string" ? v : JSON.stringify(v)]); } catch { return [["args", text]]; }
}

/** A moment as text, and back: what is in view, and what is selected. @param {{a: number, b: number, pick?: ?{rank: number, row: number, ts: number}}} m */
export function momentText(m) { return `t=${Math.round(m.a)}-${Math.round(m.b)}` + (m.pick ? `&at=${m.pick.rank}.${m.pick.row}.${Math.round(m.pick.ts)}` : ""); }
/** @param {string} text */
export function momentOf(text) {
  const t = /t=(-?\d+)-(-?\d+)/.exec(text), p = /at=(\d+)\.(\d+)\.(-?\d+)/.exec(text);
  return t && +t[2] > +t[1] ? { a: +t[1], b: +t[2], pick: p ? { rank: +p[1], row: +p[2], ts: +p[3] } : null } : null;
}

// ---- questions about traces

/** Which names have the text, whatever its case. @param {[string, string][]} names @param {string} text */
export function namesWith(names, text) {
  const low = text.toLowerCase(), out = new Uint8Array(names.length);
  names.forEach(([n], i) => { out[i] = n.toLowerCase().includes(low) ? 1 : 0; });
  return out;
}

/** The events of those names, row by row. @param {Trace} t @param {Uint8Array} hit */
export function hitsOf(t, hit) {
  const out = [], room = new Uint32Array(t.n);
  for (const r of t.rows) {
    let n = 0;
    for (let i = r.from; i < r.from + r.n; i++) if (hit[t.name[i]]) room[n++] = i;
    out.push(room.slice(0, n));
  }
  return out;
}

/** The next (`way` 1) or previous (-1) match from time `at` on, and which of all it is. Rows are `{offset, ts, hits}`; ties go by their order.
 * @param {{offset: number, ts: Float64Array, hits: Uint32Array}[]} rows @param {number} at @param {number} order @param {number} way */
export function nextHit(rows, at, order, way) {
  const before = (/** @type {number} */ k, /** @type {number} */ x, /** @type {boolean} */ same) => {      // matches of row k at or before x
    const { offset, ts, hits } = rows[k];
    let lo = 0, hi = hits.length;
    while (lo < hi) { const m = (lo + hi) >>> 1, v = ts[hits[m]] + offset; if (same ? v <= x : v < x) lo = m + 1; else hi = m; }
    return lo;
  };
  let best = -1, t = 0, index = 0, total = 0;
  for (let k = 0; k < rows.length; k++) {
    const { offset, ts, hits } = rows[k], i = way > 0 ? before(k, at, k <= order) : before(k, at, k < order) - 1;
    total += hits.length;
    if (i < 0 || i >= hits.length) continue;
    const v = ts[hits[i]] + offset;
    if (best < 0 || (way > 0 ? v < t : v >= t)) { best = k; t = v; index = hits[i]; }
  }
  if (best < 0) return { row: -1, index: 0, t: 0, nth: 0, total };
  let nth = 0;
  for (let k = 0; k < rows.length; k++) nth += before(k, t, k <= best);
  return { row: best, index, t, nth, total };
}

/** Self time in `a..b`: for each name its nanoseconds without what lay inside. @param {Trace} t @param {number} a @param {number} b @param {(track: Track) => boolean} which */
export function selfTimes(t, a, b, which) {
  const own = new Float64Array(t.names.length);
  t.rows.forEach((row, k) => {
    if (!which(t.tracks[row.track])) return;
    const above = t.rows.find(r => r.track === row.track && r.depth === row.depth - 1), end = row.from + row.n;
    let p = above ? firstAfter(t, above, a) : 0;
    for (let i = firstAfter(t, row, a); i < end && t.ts[i] < b; i++) {
      const d = Math.min(b, t.ts[i] + t.dur[i]) - Math.max(a, t.ts[i]);
      own[t.name[i]] += d;
      if (!above) continue;
      while (p + 1 < above.from + above.n && t.ts[p + 1] <= t.ts[i]) p++;
      own[t.name[p]] -= d;
    }
  });
  return own;
}

/** Which collective an event belongs to: it begins or ends with it. @param {{n: number, start: Float64Array, end: Float64Array, ranks: number}} c @param {number} r @param {number} ts @param {number} end */
export function collectiveOf(c, r, ts, end) {
  let best = -1, least = Infinity;
  for (let k = 0; k < c.n; k++) {
    const s = c.start[k * c.ranks + r], e = c.end[k * c.ranks + r];
    if (Number.isNaN(s) || ts > e + 1e3 || end < s - 1e3) continue;
    const d = Math.min(Math.abs(s - ts), Math.abs(e - end));
    if (d < least) { least = d; best = k; }
  }
  return best;
}

// ---- the page

/** @param {string} tag @param {string} name @param {...(Node|string)} inside @returns {any} */
function h(tag, name, ...inside) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...inside);
  return node;
}

/** @param {string} name @param {string} title @param {string} text @param {() => void} act @returns {HTMLButtonElement} */
function button(name, title, text, act) {
  const b = h("button", `dtl-button ${name}`, text);
  b.type = "button"; b.title = title;
  b.setAttribute("aria-label", title);
  b.addEventListener("click", act);
  return b;
}

/** @param {Node} node @param {string} text */
function set(node, text) { if (node.textContent !== text) node.textContent = text; }

/** CSS colours as 0xAABBGGRR, through the browser's own parser. @param {HTMLElement} root */
function palette(root) {
  const probe = h("i", ""), g = /** @type {CanvasRenderingContext2D} */ (h("canvas", "").getContext("2d", { willReadFrequently: true }));
  root.append(probe);
  const read = (/** @type {string} */ name) => {
    probe.style.color = `var(${name})`;
    const text = getComputedStyle(probe).color;
    g.canvas.width = 1;
    g.fillStyle = text;
    g.fillRect(0, 0, 1, 1);
    const [r, gr, b] = g.getImageData(0, 0, 1, 1).data;
    return { text, value: (0xff000000 | (b << 16) | (gr << 8) | r) >>> 0 };
  };
  const all = Object.fromEntries(["bg", "head", "ink", "soft", "rule", "accent", "last", ...CLASSES].map(k => [k, read(`--dtl-${k}`)]));
  probe.remove();
  return all;
}

/** Names of one class differ a little. @param {string} name */
function shade(name) {
  let x = 2166136261;
  for (let i = 0; i < name.length; i++) x = Math.imul(x ^ name.charCodeAt(i), 16777619);
  return ((x >>> 8) % 1000) / 500 - 1;
}

/** @param {number} v */
const dark = v => (v & 255) * 0.299 + ((v >> 8) & 255) * 0.587 + ((v >> 16) & 255) * 0.114 < 140;

const TRACK_ORDER = ["main", "autograd", "comm", "gpu", "python", "other"];

/** What each rank has, whether its events are here or only their bins. @param {Scene} scene @param {(Trace|Bins)[]} all */
function ranksOf(scene, all) {
  const worst = Math.max(0, ...scene.shares.map(s => s.caused)), few = scene.ranks.length <= 4;
  return scene.ranks.map((info, i) => {
    const t = /** @type {any} */ (all[i]), whole = !scene.bins, alone = scene.ranks.length === 1;
    let from = 0;
    const rows = whole ? t.rows : info.rows.map(([track, depth, n]) => { const row = { track, depth, from, n }; from += n; return row; });
    const tracks = whole ? t.tracks : info.tracks, names = whole ? t.names : info.names;
    const order = tracks.map((_, k) => k).sort((a, b) => TRACK_ORDER.indexOf(tracks[a].kind) - TRACK_ORDER.indexOf(tracks[b].kind) || a - b);
    return { info, i, off: info.offset, rows: /** @type {Row[]} */ (rows), tracks: /** @type {Track[]} */ (tracks), names: /** @type {[string, string][]} */ (names), order,
      trace: /** @type {?Trace} */ (whole ? t : null), bins: /** @type {?Bins} */ (whole ? null : t), detail: /** @type {?[number, number]} */ (whole ? [-Infinity, Infinity] : null),
      memory: whole ? t.memory : info.memory, open: few || i === 0 || (worst > 0 && scene.shares[i]?.caused === worst), deep: /** @type {Set<number>} */ (new Set(alone ? order : [])), look: /** @type {Look} */ (none), hits: /** @type {?Uint32Array[]} */ (null) };
  });
}

/** A timeline in `root`. Returns what else may be done with it. @param {HTMLElement} root @param {Data} data @param {Source} source */
function view(root, data, source) {
  const { scene, traces, times } = data, R = scene.ranks.length, whole = !scene.bins, ranks = ranksOf(scene, traces), K = scene.collectives.n;
  const flat = times && K ? new Float64Array(times.buffer.slice(times.byteOffset, times.byteOffset + 16 * K * R)) : new Float64Array(0);
  const coll = { n: K, ranks: R, start: flat.subarray(0, K * R), end: flat.subarray(K * R) };
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches, redraws = /** @type {(() => void)[]} */ ([]);

  // what is on the page
  const live = h("div", "dtl-live"), facts = h("span", "dtl-facts"), find = h("input", "dtl-find"), found = h("span", "dtl-found"), details = h("section", "dtl-details"), labels = h("div", "dtl-labels");
  const ruler = h("canvas", "dtl-ruler"), base = h("canvas", "dtl-base"), over = h("canvas", "dtl-over"), tip = h("div", "dtl-tip"), spacer = h("div", "dtl-spacer"), scroller = h("div", "dtl-scroll");
  const gr = ruler.getContext("2d"), gb = base.getContext("2d", { alpha: false }), go = over.getContext("2d");
  const plot = h("div", "dtl-plot", base, over), sticky = h("div", "dtl-sticky", labels, plot), corner = h("div", "dtl-corner");
  live.setAttribute("aria-live", "polite");
  find.type = "search"; find.placeholder = "Find events"; find.setAttribute("aria-label", "Find events by name");
  over.tabIndex = 0;
  over.setAttribute("role", "application");
  over.setAttribute("aria-label", `Timeline of ${R} rank${R > 1 ? "s" : ""}. Arrow keys go from event to event, W and S zoom, A and D move, Enter zooms to the event, F shows everything.`);
  spacer.append(sticky);
  scroller.append(spacer);
  const pad = scene.span * 0.01, whence = { a: -pad, b: scene.span + pad };
  const now = { ...whence }, aim = { ...whence };
  let /** @type {?Hit} */ picked = null, /** @type {?Hit} */ hovered = null, /** @type {?[number, number]} */ range = null, shownColl = -1, colors = palette(root), query = "", asked = "", waiting = 0, gone = false;
  let width = 0, height = 0, dpr = 1, /** @type {any[]} */ lanes = [], total = 0, /** @type {ImageData} */ image = none, pixels = new Uint32Array(0), line = new Uint32Array(0);

  const tools = h("div", "dtl-tools",
    h("span", "dtl-group", button("", "Zoom in (W, or Ctrl and the wheel)", "+", () => zoom(0.5)), button("", "Zoom out (S)", "−", () => zoom(2)), button("", "Earlier (A)", "◀", () => pan(-0.4)), button("", "Later (D)", "▶", () => pan(0.4)), button("", "Show everything (F)", "Fit", fit)),
    h("span", "dtl-search", find, h("span", "dtl-group", button("dtl-up", "Previous match (Shift+Enter)", "↑", () => search(-1)), button("dtl-down", "Next match (Enter)", "↓", () => search(1))), found), legend());
  const actions = h("span", "dtl-actions", button("dtl-copy", source.close ? "Copy the call that comes back to this moment" : "Copy a link to this moment", "Copy link", copy), ...(source.close ? [button("dtl-close", "Close the timeline, show the picture", "Close", source.close)] : []));
  const head = h("header", "dtl-head", h("b", "dtl-title", scene.title), facts, actions);
  set(facts, [`${R} rank${R > 1 ? "s" : ""}`, scene.heat.steps.length ? `${scene.heat.steps.length} step${scene.heat.steps.length > 1 ? "s" : ""}` : "", `${count(scene.events)} events`, time(scene.span)].filter(x => x).join(" · "));
  const notes = h("div", "dtl-notes", ...scene.notes.map(n => h("div", "", n)));
  root.append(head, ...(scene.sentence ? [h("div", "dtl-sentence", scene.sentence)] : []), ...(scene.notes.length ? [notes] : []), summary(), tools, h("div", "dtl-stage", h("div", "dtl-top", corner, ruler), scroller, tip), details, live);
  root.setAttribute("data-lm-suppress-shortcuts", "true");

  // ---- colours, lanes

  function looks() {
    colors = palette(root);
    const bg = colors.bg.value, white = 0xffffffff, black = 0xff000000;
    for (const r of ranks) {
      const color = new Uint32Array(r.names.length), dim = new Uint32Array(r.names.length);
      r.names.forEach(([text], i) => {
        const c = colors[CLASSES[r.info.classes[i] ?? 0]].value, s = shade(text);
        color[i] = s > 0 ? blend(white, c, Math.round(48 * s)) : blend(black, c, Math.round(-26 * s));
        dim[i] = blend(c, bg, 44);
      });
      r.look = { color, dim, hit: r.look?.hit ?? null, bg };
    }
  }

  function legend() {
    const there = new Set(ranks.flatMap(r => r.info.classes));
    return h("span", "dtl-legend", ...CLASSES.map((c, i) => ({ c, i })).filter(x => there.has(x.i)).map(({ c, i }) => { const key = h("i", ""); key.style.background = `var(--dtl-${c})`; return h("span", "", key, CLASS_WORDS[i]); }));
  }

  function layout() {
    lanes = [];
    let y = 0;
    for (const r of ranks) {
      const group = { kind: "head", r, y, h: HEAD, to: 0 };
      lanes.push(group);
      if (!r.open) {
        const rows = r.order.flatMap(t => r.rows.map((row, k) => ({ row, k })).filter(x => x.row.track === t && x.row.n)).slice(0, 16), each = (HEAD - 4) / Math.max(1, rows.length);
        rows.forEach(({ k }, j) => lanes.push({ kind: "row", r, row: k, y: y + 2 + j * each, h: each, thin: true }));
        y += HEAD;
      } else {
        y += HEAD;
        for (const t of r.order) {
          const mine = r.rows.map((row, k) => ({ row, k })).filter(x => x.row.track === t && x.row.n), squeezed = mine.length > DEEP && !r.deep.has(t), each = squeezed ? THIN : ROW;
          if (!mine.length) continue;
          lanes.push({ kind: "track", r, track: t, y, h: mine.length * each, deep: mine.length > DEEP, label: r.tracks[t].label });
          for (const { k } of mine) { lanes.push({ kind: "row", r, row: k, y, h: each, thin: squeezed }); y += each; }
          y += GAP;
        }
        for (const [device, points] of Object.entries(r.memory ?? {})) {
          if (!points[0]?.length) continue;
          lanes.push({ kind: "memory", r, y, h: MEMORY, points, label: `${device === "cpu" ? "memory" : device} ≤ ${bytes(points[1].reduce((m, v) => Math.max(m, v), 0))}` });
          y += MEMORY + GAP;
        }
      }
      y += 3;
      group.to = y;
    }
    total = y;
    spacer.style.height = `${Math.max(total, 60)}px`;
    drawLabels();
  }

  function drawLabels() {
    const inner = h("div", "dtl-names");
    for (const l of lanes) {
      let node;
      if (l.kind === "head") {
        node = button("dtl-rank", `${l.r.open ? "Fold" : "Unfold"} rank ${l.r.info.rank}`, "", () => { l.r.open = !l.r.open; layout(); ask(); inner2(l.r.i); });
        node.append(h("span", "dtl-fold", l.r.open ? "▾" : "▸"), h("b", "", `rank ${l.r.info.rank}`), h("span", "dtl-host", l.r.info.host));
        node.setAttribute("aria-expanded", String(l.r.open));
        node.title = `${l.r.info.label}: ${count(l.r.info.events)} events`;
      } else if (l.kind === "track" && l.deep) {
        node = button("dtl-track", "Show or squeeze this track's rows", `${l.r.deep.has(l.track) ? "▾" : "▸"} ${l.label}`, () => { if (!l.r.deep.delete(l.track)) l.r.deep.add(l.track); layout(); ask(); });
      } else if (l.kind === "track" || l.kind === "memory") { node = h("div", "dtl-track", l.label); node.title = l.label; } else continue;
      node.style.top = `${l.y}px`;
      node.style.height = `${l.kind === "head" ? HEAD : Math.min(l.h, ROW)}px`;
      inner.append(node);
    }
    labels.replaceChildren(inner);
    inner.style.transform = `translateY(${-scroller.scrollTop}px)`;
  }
  const inner2 = (/** @type {number} */ i) => labels.querySelectorAll(".dtl-rank")[i]?.focus({ preventScroll: true });

  // ---- drawing

  const x = (/** @type {number} */ t) => (t - now.a) / (now.b - now.a) * width, at = (/** @type {number} */ px) => now.a + px / width * (now.b - now.a);

  /** Takes the size that there is; returns whether it is another one. */
  function size() {
    const w = plot.clientWidth, hh = Math.max(40, Math.min(total, scroller.clientHeight || 400)), d = Math.min(2, devicePixelRatio || 1);
    if (!w || (w === width && hh === height && d === dpr)) return false;
    width = w; height = hh; dpr = d;
    for (const [c, ch] of /** @type {[HTMLCanvasElement, number][]} */ ([[base, height], [over, height], [ruler, 40]])) { c.width = Math.round(width * d); c.height = Math.round(ch * d); c.style.width = `${width}px`; c.style.height = `${ch}px`; }
    sticky.style.height = `${height}px`;
    image = gb.createImageData(base.width, base.height);
    pixels = new Uint32Array(image.data.buffer);
    line = new Uint32Array(base.width);
    redraws.forEach(f => f());
    return true;
  }

  /** @param {number} y @param {number} hh @param {?Uint32Array} from @param {number} value */
  function fillRows(y, hh, from, value) {
    const W = base.width, y0 = Math.max(0, y), y1 = Math.min(base.height, y + hh);
    if (y1 <= y0) return;
    if (!from) { pixels.fill(value, y0 * W, y1 * W); return; }
    pixels.set(from, y0 * W);
    for (let k = y0 + 1; k < y1; k++) pixels.copyWithin(k * W, y0 * W, y0 * W + W);
  }

  function paint() {
    size();
    if (!width) return;
    const top = scroller.scrollTop, k = base.width / (now.b - now.a), texts = /** @type {any[]} */ ([]), bg = colors.bg.value, headBg = colors.head.value;
    labels.firstChild.style.transform = `translateY(${-top}px)`;
    pixels.fill(bg);
    for (const l of lanes) {
      if (l.y + l.h < top || l.y > top + height) continue;
      const y = Math.round((l.y - top) * dpr), hh = Math.max(1, Math.round((l.y + l.h - top) * dpr) - y - (l.thin ? 0 : Math.round(dpr)));
      if (l.kind === "head") fillRows(y, Math.round((HEAD - 1) * dpr), null, l.r.open ? headBg : bg);
      if (l.kind !== "row") continue;
      const wide = l.thin ? null : /** @type {number[]} */ ([]), row = l.r.rows[l.row], inside = l.r.detail && now.a >= l.r.detail[0] && now.b <= l.r.detail[1];
      if (l.r.trace && inside) scan(l.r.trace, l.r.trace.rows[l.row], now.a - l.r.off, k, line, l.r.look, wide, l.r.hits?.[l.row] ?? null);
      else if (l.r.bins) scanBins(l.r.bins, l.row, now.a - l.r.off, k, line, l.r.look);
      else continue;
      fillRows(y, hh, line, 0);
      if (wide?.length) texts.push(l, y / dpr, wide);
    }
    gb.putImageData(image, 0, 0);
    gb.save();
    gb.scale(dpr, dpr);
    names(texts);
    marks(top);
    gb.restore();
    drawRuler();
    drawOver();
    more();
  }

  const widths = /** @type {Map<string, number>} */ (new Map());
  const wide_ = (/** @type {string} */ text) => { let w = widths.get(text); if (w === undefined) { if (widths.size > 20_000) widths.clear(); w = gb.measureText(text).width; widths.set(text, w); } return w; };
  /** @param {any[]} texts */
  function names(texts) {
    gb.font = `11px ${getComputedStyle(root).fontFamily}`;
    gb.textBaseline = "middle";
    for (let n = 0; n < texts.length; n += 3) {
      const l = texts[n], y = texts[n + 1], wide = texts[n + 2], t = l.r.trace, { color, dim, hit } = l.r.look;
      for (let i = 0; i < wide.length; i += 3) {
        const id = t.name[wide[i]], text = t.names[id][0], c = hit && !hit[id] ? dim[id] : color[id], x0 = wide[i + 1] / dpr, room = (wide[i + 2] - wide[i + 1]) / dpr - 8;
        let fits = text, w = wide_(text);
        for (let left = text.length; w > room && left > 1;) { left = Math.max(1, Math.min(left - 1, Math.floor(left * (room - 6) / w))); fits = `${text.slice(0, left)}…`; w = wide_(fits); }
        if (w > room || room < 14) continue;
        gb.fillStyle = hit && !hit[id] ? colors.soft.text : dark(c) ? "#fff" : "#1b1f24";
        gb.fillText(fits, x0 + 4, y + (l.h - 1) / 2 + 0.5);
      }
    }
  }

  /** Steps of each rank, and its memory. @param {number} top */
  function marks(top) {
    for (const l of lanes) {
      if (l.kind === "memory" && l.y + l.h > top && l.y < top + height) drawMemory(l, l.y - top);
      if (l.kind !== "head" || l.to < top || l.y > top + height) continue;
      gb.fillStyle = colors.rule.text;
      if (l.r.open) gb.fillRect(0, l.y - top, width, 1);
      const steps = l.r.info.steps, dense = steps.length > 2 && (steps[steps.length - 1][1] - steps[0][1]) / steps.length / (now.b - now.a) * width < 7;
      if (!dense) for (const [, start, dur] of steps) for (const t of [start, start + dur]) {
        const px = Math.round(x(t + l.r.off));
        if (px >= 0 && px <= width) gb.fillRect(px, l.y - top, 1, l.to - l.y - 3);
      }
    }
  }

  /** @param {any} l @param {number} y */
  function drawMemory(l, y) {
    const [ts, value] = l.points, most = value.reduce((/** @type {number} */ m, /** @type {number} */ v) => Math.max(m, v), 1), floor = y + l.h - 1, up = (/** @type {number} */ v) => floor - v / most * (l.h - 6);
    let i = Math.max(0, lower(ts, now.a - l.r.off, 0, ts.length) - 1);
    gb.beginPath();
    gb.moveTo(x(ts[i] + l.r.off), floor);
    for (; i < ts.length; i++) {
      const px = x(ts[i] + l.r.off);
      gb.lineTo(px, i ? up(value[i - 1]) : floor);
      gb.lineTo(px, up(value[i]));
      if (px > width) break;
    }
    if (i >= ts.length) gb.lineTo(x(ts[ts.length - 1] + l.r.off), floor); else gb.lineTo(width, floor);
    gb.globalAlpha = 0.22;
    gb.fillStyle = colors.accent.text;
    gb.fill();
    gb.globalAlpha = 0.9;
    gb.strokeStyle = colors.accent.text;
    gb.lineWidth = 1;
    gb.stroke();
    gb.globalAlpha = 1;
  }

  function drawRuler() {
    gr.setTransform(dpr, 0, 0, dpr, 0, 0);
    gr.clearRect(0, 0, width, 40);
    gr.font = `11px ${getComputedStyle(root).fontFamily}`;
    gr.textBaseline = "middle";
    const first = ranks.find(r => r.info.steps.length);
    const mean = first ? first.info.steps.reduce((sum, s) => sum + s[2], 0) / first.info.steps.length / (now.b - now.a) * width : 1, every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find(k => k * mean >= 34) ?? 5000;
    first?.info.steps.forEach(([n, start, dur], i) => {
      const x0 = x(start + first.off), x1 = x(start + dur + first.off);
      if (x1 < 0 || x0 > width) return;
      gr.globalAlpha = (every === 1 ? i : Math.floor(n / every)) % 2 ? 0.1 : 0.2;
      gr.fillStyle = colors.soft.text;
      gr.fillRect(x0, 0, Math.max(1, x1 - x0), 18);
      gr.globalAlpha = 1;
      const text = x1 - x0 > 64 ? `step ${n}` : `${n}`, w = gr.measureText(text).width, l = Math.max(x0, 0), rr = Math.min(x1, width);
      gr.fillStyle = colors.ink.text;
      if (every === 1 ? rr - l > w + 6 : n % every === 0) gr.fillText(text, every === 1 ? (l + rr - w) / 2 : Math.max(2, Math.min(width - w, x0 + 2)), 9.5);
    });
    const step = tick(now.b - now.a, width / 110), from0 = tickBase(now.a, now.b);
    set(corner, from0 ? `from ${tickLabel(from0, 10 ** Math.ceil(Math.log10(now.b - now.a)), from0)}` : "");
    for (let t = Math.ceil(now.a / step) * step; t <= now.b; t += step) {
      const px = Math.round(x(t)), value = Math.round(t / step) * step;
      gr.fillStyle = colors.rule.text;
      gr.fillRect(px, 20, 1, 20);
      gr.fillStyle = colors.soft.text;
      gr.fillText(`${from0 && value > from0 ? "+" : ""}${tickLabel(value - from0, step, Math.max(step, now.b - from0))}`, px + 4, 30);
    }
    if (range) {
      const [x0, x1] = range.map(x);
      gr.globalAlpha = 0.25;
      gr.fillStyle = colors.accent.text;
      gr.fillRect(x0, 18, x1 - x0, 22);
      gr.globalAlpha = 1;
    }
  }

  /** @param {Hit} e @param {string} color @param {number} thick */
  function outline(e, color, thick) {
    const l = lanes.find(n => n.kind === "row" && n.r.i === e.r && n.row === e.row);
    if (!l) return;
    const y = l.y - scroller.scrollTop, x0 = Math.max(-4, x(e.ts + l.r.off)), x1 = Math.min(width + 4, x(e.ts + e.dur + l.r.off));
    go.strokeStyle = color;
    go.lineWidth = thick;
    go.strokeRect(x0 - (x1 - x0 < 3 ? 1.5 : 0), y, Math.max(3, x1 - x0), Math.max(2, l.h - 1));
  }

  function drawOver() {
    go.setTransform(dpr, 0, 0, dpr, 0, 0);
    go.clearRect(0, 0, width, height);
    if (range) {
      const [x0, x1] = range.map(x);
      go.globalAlpha = 0.12;
      go.fillStyle = colors.accent.text;
      go.fillRect(x0, 0, x1 - x0, height);
      go.globalAlpha = 1;
      go.fillRect(x0, 0, 1, height);
      go.fillRect(x1, 0, 1, height);
    }
    if (shownColl >= 0) drawLinks(shownColl);
    if (hovered) outline(hovered, colors.ink.text, 1);
    if (picked) outline(picked, colors.ink.text, 2);
  }

  /** Where rank `r` began its part: the row that has an event just there, else the rank's band. @param {number} k @param {number} r */
  function launchOf(k, r) {
    const s = coll.start[k * R + r], R_ = ranks[r];
    if (Number.isNaN(s)) return null;
    const group = lanes.find(l => l.kind === "head" && l.r === R_);
    let y = group.y + HEAD / 2;
    for (const l of lanes) {
      if (l.kind !== "row" || l.r !== R_ || !R_.trace) continue;
      const row = R_.trace.rows[l.row], i = lower(R_.trace.ts, s - R_.off - 1, row.from, row.from + row.n);
      if (i < row.from + row.n && Math.abs(R_.trace.ts[i] + R_.off - s) < 2 && CLASSES[R_.info.classes[R_.trace.name[i]]] === "comm") { y = l.y + l.h / 2; break; }
    }
    return { s, e: coll.end[k * R + r], y: y - scroller.scrollTop };
  }

  /** @param {number} k */
  function arrivals(k) {
    const all = ranks.map((r, i) => ({ r, i, s: coll.start[k * R + i], e: coll.end[k * R + i] })).filter(a => !Number.isNaN(a.s)), latest = all.reduce((m, a) => a.s > m.s ? a : m, all[0]);
    return { all, latest, first: Math.min(...all.map(a => a.s)) };
  }

  /** @param {number} k */
  function drawLinks(k) {
    const { latest } = arrivals(k), points = ranks.map((_, r) => ({ r, p: launchOf(k, r) })).filter(v => v.p);
    go.strokeStyle = colors.accent.text;
    go.lineWidth = 1.5;
    go.beginPath();
    points.forEach(({ p }, i) => { if (p) i ? go.lineTo(x(p.s), p.y) : go.moveTo(x(p.s), p.y); });
    go.stroke();
    for (const { r, p } of points) {
      if (!p) continue;
      const mine = r === latest.i, px = x(p.s), end = x(latest.s);
      go.fillStyle = mine ? colors.last.text : colors.accent.text;
      if (!mine && end > px + 1) { go.globalAlpha = 0.7; go.fillRect(px, p.y + 6, end - px, 2); go.globalAlpha = 1; }
      go.beginPath();
      go.arc(px, p.y, mine ? 5 : 4, 0, 7);
      go.fill();
      go.lineWidth = 1.5;
      go.strokeStyle = colors.bg.text;
      go.stroke();
      if (mine && R > 1) {
        go.font = `600 11px ${getComputedStyle(root).fontFamily}`;
        const text = "last", w = go.measureText(text).width + 10, left = px + w + 8 > width ? px - w - 8 : px + 8;
        go.fillStyle = colors.last.text;
        go.beginPath();
        go.roundRect(left, p.y - 8, w, 16, 8);
        go.fill();
        go.fillStyle = dark(colors.last.value) ? "#fff" : "#1b1f24";
        go.textBaseline = "middle";
        go.fillText(text, left + 5, p.y + 0.5);
      }
    }
  }

  function frame() {
    waiting = 0;
    if (gone) return;
    const da = aim.a - now.a, db = aim.b - now.b, near = Math.abs(da) + Math.abs(db) < (now.b - now.a) * 2e-3;
    if (near || reduced) { now.a = aim.a; now.b = aim.b; } else { now.a += da * 0.4; now.b += db * 0.4; }
    paint();
    if (now.a !== aim.a || now.b !== aim.b) ask();
  }
  function ask() { waiting ||= requestAnimationFrame(frame); }

  // ---- moving

  /** @param {number} a @param {number} b @param {boolean} [jump] */
  function show(a, b, jump) {
    const most = (whence.b - whence.a) * 1.2;
    let w = Math.max(MIN_SPAN, Math.min(most, b - a)), mid = (a + b) / 2;
    mid = Math.max(whence.a, Math.min(whence.b, mid));
    aim.a = mid - w / 2; aim.b = mid + w / 2;
    if (jump) { now.a = aim.a; now.b = aim.b; }
    ask();
  }
  function fit() { show(whence.a, whence.b); }
  /** @param {number} f @param {number} [t] @param {boolean} [jump] */
  function zoom(f, t, jump) { const c = t ?? (picked && inView(picked) ? picked.ts + picked.dur / 2 + ranks[picked.r].off : (aim.a + aim.b) / 2); show(c - (c - aim.a) * f, c + (aim.b - c) * f, jump); }
  /** @param {number} part */
  function pan(part) { const w = aim.b - aim.a; show(aim.a + part * w, aim.b + part * w); }
  /** @param {Hit} e */
  function inView(e) { const s = e.ts + ranks[e.r].off; return s < aim.b && s + e.dur > aim.a; }

  /** Bring an event into view; a speck is enlarged. @param {Hit} e @param {boolean} [close] */
  function reveal(e, close) {
    const s = e.ts + ranks[e.r].off, w = aim.b - aim.a;
    if (close) show(s - e.dur * 0.6, s + e.dur * 1.6);
    else if (e.dur / w * width < 3) { const room = Math.max(MIN_SPAN, e.dur * width / 40); show(s + e.dur / 2 - room / 2, s + e.dur / 2 + room / 2); }
    else if (s < aim.a || s + e.dur > aim.b) show(s + Math.min(e.dur, w) / 2 - w / 2, s + Math.min(e.dur, w) / 2 + w / 2);
    if (!ranks[e.r].open) { ranks[e.r].open = true; layout(); }
    const l = lanes.find(n => n.kind === "row" && n.r.i === e.r && n.row === e.row);
    if (l && (l.y < scroller.scrollTop || l.y + l.h > scroller.scrollTop + height)) scroller.scrollTop = l.y - height / 3;
    ask();
  }

  // ---- what is where

  /** @param {any} r @param {number} row @param {number} i @returns {Hit} */
  function hitAt(r, row, i) { const t = r.trace; return { r: r.i, row, ts: t.ts[i], dur: t.dur[i], name: t.name[i], args: t.argsTable[t.args[i]] ?? "" }; }

  /** @param {number} px @param {number} py @returns {?Hit} */
  function hit(px, py) {
    const y = py + scroller.scrollTop, l = lanes.find(n => n.kind === "row" && y >= n.y && y < n.y + n.h);
    if (!l || !l.r.trace || !l.r.detail || now.a < l.r.detail[0] || now.b > l.r.detail[1]) return null;
    const t = l.r.trace, row = t.rows[l.row], end = row.from + row.n;
    for (const near of [0.5, 2.5]) {
      const a = at(px - near) - l.r.off, b = at(px + near) - l.r.off, i = firstAfter(t, row, a), j = lower(t.ts, b, i, end);
      if (j > i) return hitAt(l.r, l.row, longest(t, i, j, a, b));
    }
    return null;
  }

  /** @param {Hit} e */
  function stepOf(e) {
    const steps = ranks[e.r].info.steps;
    for (const [n, start, dur] of steps) if (e.ts >= start - 1 && e.ts < start + dur) return { n, into: e.ts - start };
    return null;
  }

  /** @param {Hit} e */
  function wordsOf(e) {
    const r = ranks[e.r], step = stepOf(e), row = r.rows[e.row];
    return { name: r.names[e.name][0], cat: r.names[e.name][1], kind: CLASS_WORDS[r.info.classes[e.name] ?? 0], dur: time(e.dur), where: `rank ${r.info.rank} · ${r.tracks[row.track].label}`, step: step ? `${time(step.into)} into step ${step.n}` : `at ${time(e.ts + r.off)}` };
  }

  /** @param {Hit} e */
  function same(e) { return picked && picked.r === e.r && picked.row === e.row && picked.ts === e.ts; }

  // ---- what is picked

  /** @param {?Hit} e @param {boolean} [quiet] */
  function pick(e, quiet) {
    picked = e;
    shownColl = -1;
    if (e) {
      range = null;
      const r = ranks[e.r];
      if (CLASSES[r.info.classes[e.name]] === "comm" && coll.n) shownColl = collectiveOf(coll, e.r, e.ts + r.off, e.ts + e.dur + r.off);
      const w = wordsOf(e);
      if (!quiet) live.textContent = `${w.name}, ${w.dur}, ${w.where}, ${w.step}${shownColl >= 0 && R > 1 ? `; rank ${arrivals(shownColl).latest.r.info.rank} came last` : ""}`;
    }
    drawDetails();
    drawOver();
  }

  /** @param {[string, string][]} pairs */
  function list(pairs) { return h("div", "dtl-pairs", ...pairs.flatMap(([k, v]) => [h("span", "dtl-soft", k), h("span", "dtl-said", v)])); }

  function drawDetails() {
    details.replaceChildren();
    details.hidden = !picked && !range;
    if (range) return drawRange();
    if (!picked) return;
    const e = picked, r = ranks[e.r], w = wordsOf(e), key = h("i", "dtl-key");
    key.style.background = `var(--dtl-${CLASSES[r.info.classes[e.name] ?? 0]})`;
    const facts = /** @type {[string, string][]} */ ([["duration", w.dur], ["starts", w.step], ["where", w.where], ["kind", [w.kind, w.cat].filter(x => x).join(" · ")]]);
    if (r.trace && whole) {
      let n = 0, sum = 0;
      for (let i = 0; i < r.trace.n; i++) if (r.trace.name[i] === e.name) { n++; sum += r.trace.dur[i]; }
      const child = r.trace.rows.find(x => x.track === r.rows[e.row].track && x.depth === r.rows[e.row].depth + 1), inside = child ? coverage(r.trace, child, e.ts, e.ts + e.dur) : 0;
      if (inside) facts.splice(1, 0, ["self", `${time(e.dur - inside)} without what it calls`]);
      facts.push(["in all", `${count(n)} call${n > 1 ? "s" : ""} on this rank, ${time(sum)}, ${time(sum / n)} each`]);
    }
    const given = argsOf(e.args);
    details.append(h("div", "dtl-detail-head", h("span", "dtl-picked", key, h("b", "", w.name)), h("span", "dtl-spring"), button("", "Zoom to this event (Enter)", "Zoom to it", () => reveal(e, true)), button("", "Find all events of this name", "Find all", () => { find.value = w.name; typed(); }), button("dtl-x", "Clear the selection (Escape)", "×", () => { pick(null); over.focus({ preventScroll: true }); })),
      h("div", "dtl-columns", list(facts), ...(shownColl >= 0 && R > 1 ? [together(shownColl)] : []), ...(given.length ? [list(given)] : [])));
  }

  /** A collective on all ranks. @param {number} k */
  function together(k) {
    const { all, latest, first } = arrivals(k), wait = all.reduce((s, a) => s + latest.s - a.s, 0), spread = Math.max(1, latest.s - first);
    const title = `${scene.collectives.names[scene.collectives.name[k]]} ${k + 1} of ${coll.n}: rank ${latest.r.info.rank} came last, ${time(latest.s - first)} after the first; the others waited ${time(wait)} in all`;
    const table = h("div", "dtl-arrivals", ...all.slice(0, 64).flatMap(a => {
      const bar = h("i", a === latest ? "dtl-late" : ""), go_ = button("dtl-link", `Show rank ${a.r.info.rank}'s part`, `rank ${a.r.info.rank}`, () => { if (!a.r.open) { a.r.open = true; layout(); } const p = launchOf(k, a.i); if (p) scroller.scrollTop += p.y - height / 2; show(first - spread * 0.5, Math.max(...all.map(b => b.e)) + spread * 0.5); });
      bar.style.width = `${Math.max(2, (a.s - first) / spread * 100)}%`;
      return [go_, h("span", "dtl-lane", bar), h("span", "dtl-number", a.s === first ? "first" : `+${time(a.s - first)}`)];
    }));
    const around = button("", "Show this collective on all ranks", "Show all ranks", () => {
      if (total > scroller.clientHeight + 1) { ranks.forEach(r => { r.open = r.i === picked?.r; }); layout(); scroller.scrollTop = 0; }
      show(first - spread * 0.4, Math.max(...all.map(a => a.e)) + spread * 0.4);
    });
    const prev = button("", "The collective before", "◀", () => jump(k - 1)), next = button("", "The next collective", "▶", () => jump(k + 1));
    return h("div", "dtl-together", h("div", "", title), table, h("span", "dtl-group", around, prev, next));
  }

  /** @param {number} k */
  function jump(k) {
    if (k < 0 || k >= coll.n || !picked) return;
    const r = picked.r, s = coll.start[k * R + r];
    if (Number.isNaN(s)) return;
    const t = ranks[r].trace;
    if (!t) { show(s - (aim.b - aim.a) / 2, s + (aim.b - aim.a) / 2); return; }
    for (let row = 0; row < t.rows.length; row++) {
      const w = t.rows[row], i = lower(t.ts, s - ranks[r].off - 1, w.from, w.from + w.n);
      if (i < w.from + w.n && Math.abs(t.ts[i] + ranks[r].off - s) < 2 && CLASSES[ranks[r].info.classes[t.name[i]]] === "comm") { const e = hitAt(ranks[r], row, i); pick(e); shownColl = k; drawDetails(); show(s - (aim.b - aim.a) / 2, s + (aim.b - aim.a) / 2); return; }
    }
  }

  /** What happened in the selected range: of each rank the main thread's self time by class, and the top names. */
  function drawRange() {
    const [a, b] = /** @type {[number, number]} */ (range), there = ranks.filter(r => r.trace && r.detail && a >= r.detail[0] && b <= r.detail[1]);
    const clear = button("dtl-x", "Clear the range (Escape)", "×", () => { range = null; drawDetails(); ask(); over.focus({ preventScroll: true }); }), zoomIn = button("", "Zoom to this range (Enter)", "Zoom to it", () => show(a, b));
    details.append(h("div", "dtl-detail-head", h("b", "", time(b - a)), h("span", "dtl-soft", `from ${time(a)} to ${time(b)}; self time of the main thread by kind, and the names with most of it on all threads`), h("span", "dtl-spring"), zoomIn, clear));
    if (!there.length) { details.append(h("div", "dtl-soft", "Zoom in until the events of this range are loaded; then select it again.")); return; }
    const rows = there.map(r => {
      const t = /** @type {Trace} */ (r.trace), mainOnly = selfTimes(t, a - r.off, b - r.off, k => k.kind === "main"), all = selfTimes(t, a - r.off, b - r.off, k => k.kind !== "python");
      const by = new Float64Array(CLASSES.length);
      mainOnly.forEach((v, i) => { by[r.info.classes[i] ?? 0] += v; });
      const best = [...all.keys()].filter(i => all[i] > 0).sort((i, j) => all[j] - all[i]).slice(0, 5);
      const bar = h("span", "dtl-bar", ...CLASSES.map((c, i) => { const s = h("i", ""); s.style.width = `${by[i] / (b - a) * 100}%`; s.style.background = `var(--dtl-${c})`; s.title = `${CLASS_WORDS[i]} ${time(by[i])}`; return s; }));
      return h("div", "dtl-range-row", h("b", "", `rank ${r.info.rank}`), bar, h("span", "dtl-top-names", ...best.map(i => { const n = h("button", "dtl-link", `${t.names[i][0]}`); n.type = "button"; n.addEventListener("click", () => { find.value = t.names[i][0]; typed(); }); return h("span", "", n, ` ${time(all[i])}`); })));
    });
    details.append(h("div", "dtl-range", ...rows));
    live.textContent = `${time(b - a)} selected`;
  }

  // ---- search

  function typed() {
    query = find.value.trim();
    for (const r of ranks) {
      const names = query ? namesWith(r.names, query) : null;
      r.look.hit = names;
      r.hits = names && whole && r.trace ? hitsOf(r.trace, names) : null;
    }
    asked = "";
    if (!query) set(found, "");
    else if (whole) { const n = ranks.reduce((s, r) => s + (r.hits ?? []).reduce((m, x2) => m + x2.length, 0), 0); set(found, n ? count(n) : "none"); live.textContent = `${n ? count(n) : "no"} event${n === 1 ? "" : "s"} found`; }
    else set(found, "");
    root.classList.toggle("dtl-searching", !!query);
    ask();
  }

  /** @param {number} way */
  async function search(way) {
    if (find.value.trim() !== query) typed();
    if (!query) { find.focus(); return; }
    const flat = ranks.flatMap(r => r.order.flatMap(t => r.rows.map((row, k) => ({ row, k })).filter(n => n.row.track === t)).map(({ k }) => ({ r, k })));
    const here = picked && flat.findIndex(f => f.r.i === picked?.r && f.k === picked?.row), start = picked && here != null && inView(picked) ? picked.ts + ranks[picked.r].off : way > 0 ? aim.a : aim.b, order = picked && here != null && inView(picked) ? here : way > 0 ? -1 : flat.length;
    if (!whole) {
      const got = source.find && await source.find(query, start, order === -1 ? -1 : flat[order]?.r.i ?? R, flat[order]?.k ?? -1, way);
      if (!got?.total) { set(found, "none"); return; }
      set(found, `${count(got.nth)} of ${count(got.total)}`);
      const e = { r: got.r, row: got.row, ts: got.ts, dur: got.dur, name: got.name, args: got.args };
      pick(e); reveal(e);
      return;
    }
    const rows = flat.map(({ r, k }) => ({ offset: r.off, ts: /** @type {Trace} */ (r.trace).ts, hits: r.hits?.[k] ?? new Uint32Array(0) }));
    let got = nextHit(rows, start, order, way);
    if (got.row < 0 && got.total) got = nextHit(rows, way > 0 ? -Infinity : Infinity, way > 0 ? -1 : flat.length, way);    // around the end
    if (got.row < 0) { set(found, "none"); live.textContent = "nothing found"; return; }
    const e = hitAt(flat[got.row].r, flat[got.row].k, got.index);
    pick(e);
    set(found, `${count(got.nth)} of ${count(got.total)}`);
    reveal(e);
  }

  // ---- ranges on demand

  let /** @type {any} */ later = 0;
  function more() {
    if (whole || !source.range) return;
    const w = now.b - now.a, missing = ranks.some(r => !r.detail || now.a < r.detail[0] || now.b > r.detail[1]), key = `${Math.round(now.a)}-${Math.round(now.b)}`;
    if (!missing || scene.events * 2.5 * w / scene.span > scene.room || asked === key) return;
    clearTimeout(later);
    later = setTimeout(async () => {
      asked = key;
      const a = now.a - w * 0.75, b = now.b + w * 0.75, got = await /** @type {any} */ (source.range)(a, b);
      if (!got || gone) return;
      const traces2 = await Promise.all(got.map(decode));
      traces2.forEach((t, i) => {
        ranks[i].trace = t; ranks[i].detail = [a, b];
      });
      ask();
    }, 120);
  }

  // ---- hands: pointer, wheel, keys

  let /** @type {any} */ drag = null;
  over.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => {
    if (e.button) return;
    over.setPointerCapture(e.pointerId);
    drag = { x: e.offsetX, y: e.clientY, a: aim.a, b: aim.b, top: scroller.scrollTop, moved: false, range: e.shiftKey ? at(e.offsetX) : null };
  });
  over.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => {
    if (!drag) { hover(e); return; }
    const dx = e.offsetX - drag.x, dy = e.clientY - drag.y;
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 3;
    if (!drag.moved) return;
    tip.hidden = true; hovered = null;
    if (drag.range != null) { const t = at(e.offsetX); range = t > drag.range ? [drag.range, t] : [t, drag.range]; picked = null; ask(); return; }
    over.classList.add("dtl-grabbing");
    const w = drag.b - drag.a, by = dx / width * w;
    scroller.scrollTop = drag.top - dy;
    show(drag.a - by, drag.b - by, true);
  });
  const drop = (/** @type {PointerEvent} */ e) => {
    over.classList.remove("dtl-grabbing");
    if (drag && !drag.moved && e.type === "pointerup") { const found_ = hit(e.offsetX, e.offsetY); if (range) { range = null; } pick(found_); ask(); over.focus({ preventScroll: true }); }
    else if (drag?.range != null && range) drawDetails();
    drag = null;
  };
  over.addEventListener("pointerup", drop);
  over.addEventListener("pointercancel", drop);
  over.addEventListener("dblclick", (/** @type {MouseEvent} */ e) => { const f = hit(e.offsetX, e.offsetY); if (f) { pick(f); reveal(f, true); } });
  over.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; drawOver(); });

  /** @param {PointerEvent} e */
  function hover(e) {
    const f = hit(e.offsetX, e.offsetY), changed = JSON.stringify(f) !== JSON.stringify(hovered);
    hovered = f;
    over.style.cursor = f ? "pointer" : "grab";
    tip.hidden = !f;
    if (!f) { if (changed) drawOver(); return; }
    if (changed) {
      const w = wordsOf(f), given = argsOf(f.args).slice(0, 4);
      tip.replaceChildren(h("b", "", w.name), h("div", "dtl-tip-line", h("span", "dtl-tip-dur", w.dur), ` · ${w.step}`), h("div", "dtl-soft", `${w.where} · ${w.kind}`), ...given.map(([k, v]) => h("div", "dtl-tip-arg", h("span", "dtl-soft", k), ` ${v.length > 60 ? `${v.slice(0, 59)}…` : v}`)));
      drawOver();
    }
    const box = /** @type {HTMLElement} */ (tip.parentElement), r0 = box.getBoundingClientRect(), px = e.clientX - r0.left, py = e.clientY - r0.top, tw = tip.offsetWidth, th = tip.offsetHeight;
    tip.style.left = `${Math.max(4, Math.min(px + 14, r0.width - tw - 4))}px`;
    tip.style.top = `${py + 18 + th > r0.height + 40 ? py - th - 10 : py + 18}px`;
  }

  over.addEventListener("wheel", (/** @type {WheelEvent} */ e) => {
    const lineUp = e.deltaMode ? 16 : 1, dx = e.deltaX * lineUp, dy = e.deltaY * lineUp;
    if (e.ctrlKey || e.metaKey || e.altKey) { e.preventDefault(); zoom(Math.exp(Math.max(-80, Math.min(80, dy)) * 0.006), at(e.offsetX), true); }
    else if (e.shiftKey || Math.abs(dx) > Math.abs(dy)) { e.preventDefault(); const by = (Math.abs(dx) > Math.abs(dy) ? dx : dy) / width * (aim.b - aim.a); show(aim.a + by, aim.b + by, true); }
  }, { passive: false });
  scroller.addEventListener("scroll", () => { tip.hidden = true; ask(); });

  let /** @type {?number} */ from = null;
  ruler.addEventListener("pointerdown", (/** @type {PointerEvent} */ e) => { if (!e.button) { ruler.setPointerCapture(e.pointerId); from = at(e.offsetX); } });
  ruler.addEventListener("pointermove", (/** @type {PointerEvent} */ e) => { if (from == null) return; const t = at(Math.max(0, Math.min(width, e.offsetX))); if (Math.abs(x(t) - x(from)) > 2) { range = t > from ? [from, t] : [t, from]; picked = null; shownColl = -1; ask(); } });
  ruler.addEventListener("pointerup", (/** @type {PointerEvent} */ e) => { if (from != null && Math.abs(x(from) - e.offsetX) <= 2) range = null; from = null; drawDetails(); ask(); });
  ruler.addEventListener("dblclick", (/** @type {MouseEvent} */ e) => { const r = ranks.find(q => q.info.steps.length), t = at(e.offsetX); const s = r?.info.steps.find(([, start, dur]) => t >= start + r.off && t < start + dur + r.off); if (r && s) show(s[1] + r.off, s[1] + s[2] + r.off); });

  /** To the event beside the picked one, or above or below it. @param {string} key */
  function walk(key) {
    if (!picked) {
      const l = lanes.find(n => n.kind === "row" && n.r.trace && n.y + n.h > scroller.scrollTop && n.r.trace.rows[n.row].n);
      if (!l) return;
      const t = l.r.trace, row = t.rows[l.row], i = Math.min(row.from + row.n - 1, firstAfter(t, row, now.a - l.r.off));
      pick(hitAt(l.r, l.row, i));
    } else {
      const r = ranks[picked.r], t = r.trace;
      if (!t) return;
      if (key === "ArrowLeft" || key === "ArrowRight") {
        const row = t.rows[picked.row], i = lower(t.ts, picked.ts, row.from, row.from + row.n) + (key === "ArrowRight" ? 1 : -1);
        if (i < row.from || i >= row.from + row.n) return;
        pick(hitAt(r, picked.row, i));
      } else {
        const rows = lanes.filter(n => n.kind === "row" && n.r.trace), step = key === "ArrowDown" ? 1 : -1, mid = picked.ts + r.off + Math.min(picked.dur, 1) / 2, stop = picked.ts + picked.dur + r.off;
        for (let k = rows.findIndex(n => n.r.i === picked?.r && n.row === picked?.row) + step; k >= 0 && k < rows.length; k += step) {
          const l = rows[k], q = l.r.trace, row = q.rows[l.row], i = firstAfter(q, row, mid - l.r.off);
          if (i < row.from + row.n && (q.ts[i] + l.r.off < stop || l.r.i !== picked.r || q.rows[l.row].track !== r.rows[picked.row].track)) { pick(hitAt(l.r, l.row, i)); break; }
        }
      }
    }
    if (picked) reveal(picked);
  }

  /** @param {number} way */
  function step(way) {
    const r = ranks.find(q => q.info.steps.length), mid = (aim.a + aim.b) / 2;
    if (!r) return;
    const k = r.info.steps.findIndex(([, s, d]) => mid < s + d + r.off), s = r.info.steps[Math.max(0, Math.min(r.info.steps.length - 1, (k < 0 ? r.info.steps.length - 1 : k) + (aim.b - aim.a > scene.span * 0.9 ? 0 : way)))];
    show(s[1] + r.off - s[2] * 0.02, s[1] + r.off + s[2] * 1.02);
    live.textContent = `step ${s[0]}, ${time(s[2])}`;
  }

  over.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const key = e.key.length === 1 ? e.key.toLowerCase() : e.key;
    if (key === "w") zoom(0.6); else if (key === "s") zoom(1 / 0.6); else if (key === "a") pan(-0.25); else if (key === "d") pan(0.25);
    else if (key === "f" || key === "Home" || key === "0") fit();
    else if (key.startsWith("Arrow")) walk(key);
    else if (key === "Enter" && range) show(range[0], range[1]);
    else if (key === "Enter" && picked) reveal(picked, true);
    else if (key === "m" && picked) { const o = ranks[picked.r].off; range = [picked.ts + o, picked.ts + picked.dur + o]; picked = null; shownColl = -1; drawDetails(); ask(); }
    else if (key === "Escape" && (picked || range)) { range = null; pick(null); ask(); }
    else if (key === "/") find.focus();
    else if (key === "[" || key === "]") step(key === "]" ? 1 : -1);
    else if (key === "n") search(e.shiftKey ? -1 : 1);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
  let /** @type {any} */ soon = 0;
  find.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(typed, 90); });
  find.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
    if (e.key === "Enter") { clearTimeout(soon); search(e.shiftKey ? -1 : 1); } else if (e.key === "Escape") { find.value = ""; typed(); over.focus({ preventScroll: true }); } else return;
    e.preventDefault();
    e.stopPropagation();
  });

  function moment() { return momentText({ a: aim.a, b: aim.b, pick: picked ? { rank: ranks[picked.r].info.rank, row: picked.row, ts: picked.ts } : null }); }
  async function copy() {
    const text = source.link(moment());
    try { await navigator.clipboard.writeText(text); } catch { const field = h("textarea", "dtl-live", text); root.append(field); field.select(); document.execCommand("copy"); field.remove(); }
    live.textContent = `copied: ${text}`;
    const b = actions.querySelector(".dtl-copy");
    set(b, "Copied");
    setTimeout(() => set(b, "Copy link"), 1500);
  }

  /** Back to a moment that somebody copied. @param {string} text */
  function restore(text) {
    const m = momentOf(text);
    if (!m) return;
    show(m.a, m.b, true);
    const r = m.pick && ranks.find(q => q.info.rank === m.pick?.rank);
    if (!m.pick || !r?.trace || !r.trace.rows[m.pick.row]) return;
    const row = r.trace.rows[m.pick.row], i = lower(r.trace.ts, m.pick.ts - 0.5, row.from, row.from + row.n);
    if (i < row.from + row.n) { const e = hitAt(r, m.pick.row, i); r.open = true; layout(); pick(e); show(m.a, m.b, true); const l = lanes.find(n => n.kind === "row" && n.r === r && n.row === e.row); size(); if (l && (l.y < scroller.scrollTop || l.y > scroller.scrollTop + height)) scroller.scrollTop = l.y - height / 3; }
  }

  // ---- the summary on top

  function summary() {
    const parts = h("div", "dtl-summary");
    if (scene.shares.length) parts.append(shares());
    if (scene.heat.steps.length && R) parts.append(heat());
    return parts;
  }

  function shares() {
    const longest_ = Math.max(...scene.shares.map(s => s.step), 1e-9), lastAny = scene.shares.some(s => s.last), grid = h("div", "dtl-share-grid"), there = new Set();
    for (const s of scene.shares) {
      const bar = h("span", "dtl-bar");
      for (const p of PARTS) {
        const seg = h("i", "");
        seg.style.width = `${s[p] / longest_ * 100}%`;
        seg.style.background = `var(--dtl-part-${p})`;
        seg.title = `${PART_WORDS[p]}: ${s[p].toFixed(2)} ms, ${(s[p] / (s.step || 1) * 100).toFixed(0)} %`;
        if (s[p] > 0) there.add(p);
        if (p === "compute" && s.overlapped > 0) { const o = h("u", ""); o.style.width = `${Math.min(100, s.overlapped / (s.compute || 1) * 100)}%`; o.title = `${PART_WORDS.overlapped}: ${s.overlapped.toFixed(2)} ms`; seg.append(o); there.add("overlapped"); }
        bar.append(seg);
      }
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", [...PARTS, /** @type {const} */ ("overlapped")].map(p => `${PART_WORDS[p]} ${s[p].toFixed(2)} ms`).join(", "));
      const last = h("span", "dtl-number dtl-soft", lastAny ? (s.last ? `last in ${s.last}` : "") : "");
      if (s.caused > 0) last.title = `the others waited ${s.caused.toFixed(2)} ms for it`;
      grid.append(h("b", "", `rank ${s.rank}`), bar, h("span", "dtl-number", `${s.step.toFixed(s.step < 100 ? 2 : 1)} ms`), last);
    }
    const keys = h("div", "dtl-legend", ...[...PARTS, /** @type {const} */ ("overlapped")].filter(p => there.has(p)).map(p => { const i = h(p === "overlapped" ? "u" : "i", ""); i.style.background = p === "overlapped" ? "" : `var(--dtl-part-${p})`; return h("span", "", i, PART_WORDS[p]); }));
    return h("section", "dtl-shares", h("div", "dtl-what", "A step, by rank"), grid, keys);
  }

  function heat() {
    const canvas = h("canvas", "dtl-heat"), said = h("span", "dtl-soft"), { steps, own, total: all } = scene.heat, S = steps.length;
    const values = own.flat().filter(v => v >= 0).sort((p, q) => p - q), lo = values[0] ?? 0, hi = values[Math.floor((values.length - 1) * 0.98)] ?? 1;
    let cell = { s: 0, r: 0 }, cw = 1, ch = 1;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Own time of ${R} ranks in ${S} steps; arrow keys choose a cell, Enter goes there`);
    const idle = () => set(said, `${lo.toFixed(2)} to ${(values[values.length - 1] ?? 0).toFixed(2)} ms; a click goes there`);
    function draw() {
      const W = Math.max(60, canvas.parentElement?.clientWidth ?? 200), d = Math.min(2, devicePixelRatio || 1);
      const rows = /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(".dtl-share-grid .dtl-bar"));      // beside the ranks' bars, where there is room
      cw = Math.min(44, W / S); ch = R > 1 && R <= 8 && rows[1] ? rows[1].offsetTop - rows[0].offsetTop : Math.max(2, Math.min(18, 150 / R));
      canvas.style.width = `${Math.min(W, cw * S)}px`; canvas.style.height = `${ch * R}px`;
      canvas.width = Math.round(Math.min(W, cw * S) * d); canvas.height = Math.round(ch * R * d);
      const g = canvas.getContext("2d");
      g.scale(d, d);
      const gap = cw > 6 && ch > 6 ? 1 : 0, low = ch > 18 ? ch - 14 : gap;
      for (let r = 0; r < R; r++) for (let s = 0; s < S; s++) {
        const v = own[r]?.[s] ?? -1;
        g.globalAlpha = v < 0 ? 0.04 : hi > lo * 1.02 ? 0.1 + 0.9 * Math.max(0, Math.min(1, (v - lo) / (hi - lo))) : 0.3;
        g.fillStyle = colors.last.text;
        g.fillRect(s * cw, r * ch + low / 2, cw - gap, ch - low);
      }
      g.globalAlpha = 1;
      if (document.activeElement === canvas) { g.strokeStyle = colors.ink.text; g.lineWidth = 1.5; g.strokeRect(cell.s * cw + 0.75, cell.r * ch + low / 2, cw - 1.5, ch - low); }
    }
    const tell = (at_ = cell) => { const cell = at_, v = own[cell.r]?.[cell.s]; set(said, v == null || v < 0 ? `rank ${scene.ranks[cell.r]?.rank}: no step ${steps[cell.s]}` : `rank ${scene.ranks[cell.r].rank}, step ${steps[cell.s]}: ${v.toFixed(2)} ms of its own in ${all[cell.r][cell.s].toFixed(2)} ms`); };
    const goTo = () => {
      const r = ranks[cell.r], s = r?.info.steps.find(([n]) => n === steps[cell.s]);
      if (!s) return;
      show(s[1] + r.off - s[2] * 0.02, s[1] + r.off + s[2] * 1.02);
      const l = lanes.find(n => n.kind === "head" && n.r === r);
      if (l) scroller.scrollTop = l.y;
      live.textContent = said.textContent;
    };
    const under = (/** @type {MouseEvent} */ e) => ({ s: Math.max(0, Math.min(S - 1, Math.floor(e.offsetX / cw))), r: Math.max(0, Math.min(R - 1, Math.floor(e.offsetY / ch))) });
    canvas.addEventListener("pointermove", (/** @type {MouseEvent} */ e) => tell(under(e)));
    canvas.addEventListener("pointerleave", idle);
    canvas.addEventListener("click", (/** @type {MouseEvent} */ e) => { cell = under(e); draw(); tell(); goTo(); });
    canvas.addEventListener("focus", () => { draw(); tell(); });
    canvas.addEventListener("blur", () => { draw(); idle(); });
    canvas.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
      const d = /** @type {any} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] })[e.key];
      if (d) { cell = { s: Math.max(0, Math.min(S - 1, cell.s + d[0])), r: Math.max(0, Math.min(R - 1, cell.r + d[1])) }; draw(); tell(); live.textContent = said.textContent; } else if (e.key === "Enter") goTo(); else return;
      e.preventDefault();
      e.stopPropagation();
    });
    idle();
    redraws.push(draw);
    return h("section", "dtl-heats", h("div", "dtl-what", "Own time of each rank in each step, without its waiting"), h("div", "", canvas), said);
  }

  // ---- begin and end
  looks();
  layout();
  const sizes = new ResizeObserver(() => { if (size()) ask(); });
  sizes.observe(root);
  sizes.observe(scroller);
  const themed = () => { looks(); redraws.forEach(f => f()); ask(); }, themes = new MutationObserver(themed), darkness = matchMedia("(prefers-color-scheme: dark)");
  themes.observe(document.body, { attributes: true });
  themes.observe(document.documentElement, { attributes: true });
  darkness.addEventListener("change", themed);
  details.hidden = true; tip.hidden = true;
  paint();
  if (scene.moment) restore(scene.moment);
  return {
    restore, moment, ranks, scene, now, aim, lanes: () => lanes.filter(l => l.kind === "row").map(l => ({ r: l.r.i, row: l.row, y: l.y - scroller.scrollTop, h: l.h, squeezed: !!l.thin })),
    /** For tests and benchmarks: draw this part at once. @param {number} a @param {number} b */
    at(a, b) { show(a, b, true); cancelAnimationFrame(waiting); frame(); },
    stop() { gone = true; cancelAnimationFrame(waiting); clearTimeout(later); clearTimeout(soon); sizes.disconnect(); themes.disconnect(); darkness.removeEventListener("change", themed); root.replaceChildren(); },
  };
}

/** Bins as Python sends them: the coverage of every row, then its names. @param {DataView} d @param {RankInfo} info @param {Scene} scene @returns {Bins} */
function binsOf(d, info, scene) {
  const n = info.rows.length * scene.bins, at = d.byteOffset;
  return { cover: new Uint8Array(d.buffer.slice(at, at + n)), name: new Uint16Array(d.buffer.slice(at + n, at + 3 * n)), bins: scene.bins, from: -info.offset, to: scene.span - info.offset };
}

// ---- in a notebook: the picture that was saved becomes a timeline while there is a kernel

/** @typedef {{get: (key: string) => any, send: (content: object) => void, on: (name: string, fn: (...a: any[]) => void) => void, off: (name: string, fn: (...a: any[]) => void) => void}} Model */

/** A model that is never displayed: it looks for its picture on the page. @param {{model: Model}} props */
function initialize({ model }) {
  const there = document.getElementsByClassName(model.get("where")), mounted = /** @type {Map<Element, ReturnType<typeof mount>>} */ (new Map()), answers = /** @type {Map<string, (a: any) => void>} */ (new Map());
  const me = Math.random().toString(36).slice(2), id = `${me}-early`;
  let asked = 0, over = false, data = /** @type {?Promise<Kept>} */ (null), early = /** @type {?Promise<Kept>} */ (null);
  /** @param {any} content @returns {Promise<{m: any, buffers: DataView[]}>} */
  const ask = content => new Promise(done => { const id = `${me}-${asked++}`; answers.set(id, done); model.send({ ...content, id }); });
  const heard = (/** @type {any} */ m, /** @type {DataView[]} */ buffers) => { answers.get(m.reply)?.({ m, buffers }); answers.delete(m.reply); };
  /** The scene, and the events unless they came early. @returns {Promise<Kept>} */
  const get = async () => {
    const { m, buffers: [times, ...packed] } = await ask({ request: "open", early: early && id });
    if (m.error) throw new Error(m.error);
    return { scene: m.scene, times, ...m.early && early ? await early : { packed, traces: null } };
  };
  const load = () => data ??= get().catch(err => { data = null; throw err; });
  /** The picture is on its way, to be opened at once: the events may come before it. They do if Python has a thread for that, which a front end needs a moment to find out. */
  const coming = () => {
    if (!model.get("coming") || early || data) return;
    early = new Promise((/** @type {(got: {m: any, buffers: DataView[]}) => void} */ done) => answers.set(id, done)).then(({ m, buffers }) => {
      if (m.error) early = null; else load().catch(() => {});            // who opens it is told
      return { packed: buffers, traces: m.whole ? Promise.all(buffers.map(decode)) : null };
    });
    for (const ms of [0, 50, 150, 400]) setTimeout(() => { if (answers.has(id) && !data) model.send({ request: "early", id }); }, ms);
  };
  /** @type {Source} */
  const source = {
    open: async () => {
      const got = await load(), { scene, times, packed } = got, first = got.traces;
      got.traces = null;                                          // the bytes are kept, which are small
      return { scene, times, traces: await (first ?? (scene.bins ? packed.map((d, i) => binsOf(d, scene.ranks[i], scene)) : Promise.all(packed.map(decode)))) };
    },
    range: async (a, b) => over ? null : ask({ request: "range", a, b }).then(({ m, buffers }) => m.n ? buffers : null),
    find: async (text, t, r, row, way) => over ? null : (await ask({ request: "find", text, t, r, row, way })).m,
    link: moment => `${model.get("call")}.at("${moment}")`,
    close: null,
  };
  const sweep = () => {
    for (const el of there) if (!mounted.has(el)) mounted.set(el, mount(/** @type {HTMLElement} */ (el), source, model.get("opened"), () => over));
    for (const [el, m] of mounted) {                              // a cell out of sight may be off the page for a while; one that ran again is gone
      m.missing = el.isConnected ? 0 : m.missing || performance.now();
      if (m.missing && performance.now() - m.missing > FORGET) { m.stop(); mounted.delete(el); }
    }
  };
  let soon = 0;
  const seen = new MutationObserver(() => { if (there.length > mounted.size) sweep(); else soon ||= window.setTimeout(() => { soon = 0; sweep(); }, 60); });
  const left = () => { over = true; for (const m of mounted.values()) m.gone(); };
  seen.observe(document.body, { childList: true, subtree: true });
  model.on("msg:custom", heard);
  model.on("comm_live_update", left);
  sweep();
  model.on("change:coming", coming);
  coming();
  return () => { clearTimeout(soon); seen.disconnect(); model.off("msg:custom", heard); model.off("change:coming", coming); model.off("comm_live_update", left); for (const m of mounted.values()) m.stop(); };
}

/** The picture of this timeline in an output of its own, beside. @param {Element} el */
function pictureOf(el) {
  const next = /** @type {?HTMLElement} */ (el.closest(".jp-OutputArea-child")?.nextElementSibling);
  return next?.querySelector(".jp-RenderedImage img") ? next : null;
}

/** The button in a picture's frame, and the timeline that it opens. @param {HTMLElement} el @param {Source} source @param {string} opened @param {() => boolean} over */
function mount(el, source, opened, over) {
  const still = /** @type {HTMLElement[]} */ ([...el.children]), words = h("span", "dtl-soft"), root = h("div", "dtl"), open = button("dtl-open", "Open timeline", "Open timeline", () => start("")), bar = h("div", "dtl-bar-open", open, words);
  let shown = /** @type {?ReturnType<typeof view>} */ (null), late = 0;
  const picture = (/** @type {boolean} */ on) => { const p = pictureOf(el); if (p) p.style.display = on ? "" : "none"; };
  /** @param {string} moment */
  async function start(moment) {
    if (shown || open.disabled) return;
    open.disabled = true;
    set(words, "loading …");
    late = window.setTimeout(() => set(words, over() ? "its kernel has gone: run the cell again" : "the kernel is busy; the timeline opens when it answers"), 4000);
    try {
      const got = await source.open(), begun = performance.now();
      still.forEach(n => { n.style.display = "none"; });
      bar.style.display = "none";
      el.append(root);
      shown = view(root, { ...got, scene: { ...got.scene, moment: moment || got.scene.moment } }, { ...source, close: stop });
      /** @type {any} */ (root).timeline = shown;
      picture(false);
      performance.measure("dtnb-timeline", { start: begun, end: performance.now() });
      root.querySelector(".dtl-over")?.focus({ preventScroll: true });
    } catch (err) {
      reset();
      set(words, `${/** @type {Error} */ (err).message}`);
    } finally { clearTimeout(late); open.disabled = false; }
  }
  function reset() {
    shown?.stop();
    shown = null;
    root.remove();
    still.forEach(n => { n.style.display = ""; });
    bar.style.display = "";
    set(words, "");
  }
  function stop() { reset(); picture(true); open.focus({ preventScroll: true }); }
  el.append(bar);
  if (opened) start(opened === "yes" ? "" : opened);
  return { missing: 0, gone: () => { if (!shown) { open.disabled = true; set(words, "its kernel has gone: run the cell again"); } }, stop: () => { clearTimeout(late); reset(); bar.remove(); }, get view() { return shown; } };
}

// ---- in a page of its own

/** @param {HTMLElement} root @param {Scene} scene @param {Uint8Array[]} packed */
export async function page(root, scene, packed) {
  const last = packed[scene.ranks.length], traces = await Promise.all(packed.slice(0, scene.ranks.length).map(decode)), data = { scene: { ...scene, moment: location.hash.slice(1) || scene.moment }, traces, times: last ? new DataView(last.buffer, last.byteOffset, last.byteLength) : null };
  const shown = view(root, data, { open: async () => data, range: null, find: null, link: m => `${location.href.split("#")[0]}#${m}`, close: null });
  addEventListener("hashchange", () => shown.restore(location.hash.slice(1)));
  return shown;
}

export default { initialize };
