// The pure part of the timeline: node --test tests/js/
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";

const root = new URL("../../", import.meta.url), venv = fileURLToPath(new URL(".venv/bin/python", root));
const source = readFileSync(new URL("dtnb/static/timeline.js", root), "utf8");
const js = await import("data:text/javascript;base64," + Buffer.from(source).toString("base64"));

// Python packs a trace, and says what is in it.
const said = JSON.parse(execFileSync(process.env.PYTHON ?? (existsSync(venv) ? venv : "python3"), ["-c", `
import base64, json, numpy as np
from dtnb.trace.columns import Columns, Name, Track, pack
from dtnb.trace.picture import covered, foremost
draw = np.random.default_rng(7)
dur = np.concatenate([draw.integers(1, 3000, 5000), [3 * 10**10], draw.integers(1, 300, 700)])
ts = np.concatenate([np.cumsum(dur[:5001] + draw.integers(0, 400, 5001)) - dur[:5001], np.cumsum(np.full(700, 1000))])
c = Columns(ts, dur, draw.integers(0, 300, len(ts)), draw.integers(0, 2, len(ts)), [Name(f"aten::op{i}", "cpu_op") for i in range(300)], ["", '{"Input Dims":[[8]]}'],
            [Track("main", "main"), Track("gloo", "comm")], [(0, 0, 5001), (1, 0, 700)], 1_790_857_026_000_000_123, {"cpu": ([0, 5], [1, 2])}, dict(rank=3))
cuts = [[float(x) for x in (0, 2e6)], [1e6, 1.01e6], [1.5e6, 1.5e6 + 900], [2e10, 4e10]]
print(json.dumps(dict(packed=base64.b64encode(pack(c)).decode(), ts=c.ts.tolist(), dur=c.dur.tolist(), name=c.name.tolist(), args=c.args.tolist(), cuts=cuts,
                      covered=[[covered(c, c.row(k), np.linspace(a, b, 201)).tolist() for k in (0, 1)] for a, b in cuts], foremost=[[foremost(c, c.row(k), np.linspace(a, b, 201)).tolist() for k in (0, 1)] for a, b in cuts])))
`], { cwd: fileURLToPath(root), env: { ...process.env, PYTHONPATH: fileURLToPath(root) }, maxBuffer: 1 << 28 }).toString());
const trace = await js.decode(new Uint8Array(Buffer.from(said.packed, "base64")));

test("the browser decodes what Python packs", async () => {
  for (const key of ["ts", "dur", "name", "args"]) assert.deepEqual([...trace[key]], said[key], key);
  assert.deepEqual([trace.n, trace.names[7], trace.tracks[1].kind, trace.rows[1], trace.meta.rank], [5701, ["aten::op7", "cpu_op"], "comm", { track: 1, depth: 0, from: 5001, n: 700 }, 3]);
  assert.ok(trace.name instanceof Uint16Array && trace.dur instanceof Float64Array, "no wider than its numbers need");
  await assert.rejects(js.decode(new Uint8Array(30)), /not columns/);
});

test("coverage is Python's, at every zoom", () => {
  said.cuts.forEach(([a, b], z) => trace.rows.forEach((row, k) => {
    const w = (b - a) / 200;
    for (let i = 0; i < 200; i++) assert.ok(Math.abs(js.coverage(trace, row, a + i * w, a + (i + 1) * w) - said.covered[z][k][i]) < 1e-4, `zoom ${z}, row ${k}, bin ${i}`);
  }));
});

test("a line of pixels has that coverage, and the colour of what has most of it", () => {
  const bg = 0xffffffff, color = new Uint32Array(300).map((_, i) => 0xff000000 + i * 777), look = { color, dim: color, hit: null, bg }, wrong = [];
  said.cuts.forEach(([a, b], z) => trace.rows.forEach((row, k) => {
    const line = new Uint32Array(200);
    js.scan(trace, row, a, 200 / (b - a), line, look, null, null);
    for (let i = 0; i < 200; i++) {
      const part = said.covered[z][k][i] / ((b - a) / 200), name = said.foremost[z][k][i], want = part < 1e-9 ? bg : js.blend(color[name], bg, js.strength(part)), full = part > 0.999999;
      if (line[i] !== want && !(full && line[i] === js.blend(color[name], bg, 150))) wrong.push([z, k, i, part, line[i].toString(16), want.toString(16)]);       // a wide event begins with a lighter pixel
    }
  }));
  assert.ok(wrong.length <= 2, JSON.stringify(wrong.slice(0, 5)));                                                                                               // two events that have the same length
});

test("the longest of many events is found by blocks", () => {
  const [row] = trace.rows;
  for (let i = 0; i < 4000; i += 371) for (const n of [1, 2, 15, 16, 17, 33, 500]) {
    const a = trace.ts[i] + trace.dur[i] / 2, b = trace.ts[i + n - 1] + trace.dur[i + n - 1] / 3 + 1e-6, part = k => Math.min(b, trace.ts[k] + trace.dur[k]) - Math.max(a, trace.ts[k]);
    let best = i;
    for (let k = i; k < i + n; k++) if (part(k) > part(best)) best = k;
    assert.equal(part(js.longest(trace, i, i + n, a, b)), part(best));
  }
  assert.equal(js.firstAfter(trace, row, trace.ts[9] + trace.dur[9]), 10);
});

test("search finds names, and goes forth and back in time across rows", () => {
  const hit = js.namesWith(trace.names, "OP29"), hits = js.hitsOf(trace, hit), every = said.name.map((n, i) => i).filter(i => hit[said.name[i]]);
  assert.equal(hit.reduce((a, b) => a + b), 11);
  assert.deepEqual(hits.flatMap(h => [...h]), every);
  const rows = trace.rows.map((_, k) => ({ offset: 1000 * k, ts: trace.ts, hits: hits[k] })), keys = [];
  let at = -Infinity, order = -1;
  for (let got; (got = js.nextHit(rows, at, order, 1)).row >= 0;) { keys.push([got.t, got.row, got.index, got.nth, got.total]); at = got.t; order = got.row; }
  assert.deepEqual(keys.map(k => k[3]), every.map((_, i) => i + 1));
  assert.ok(keys.every((k, i) => !i || k[0] > keys[i - 1][0] || (k[0] === keys[i - 1][0] && k[1] > keys[i - 1][1])));
  for (let i = keys.length - 2; i >= 0; i--) assert.deepEqual(js.nextHit(rows, keys[i + 1][0], keys[i + 1][1], -1).nth, i + 1);
});

test("self time is without what lies inside, in a range, too", () => {
  const t = { names: [["a", ""], ["b", ""], ["c", ""]], tracks: [{ kind: "main" }], rows: [{ track: 0, depth: 0, from: 0, n: 2 }, { track: 0, depth: 1, from: 2, n: 3 }], ts: new Float64Array([0, 100, 10, 40, 110]), dur: new Uint32Array([60, 50, 20, 10, 5]), name: new Uint16Array([0, 0, 1, 2, 1]) };
  assert.deepEqual([...js.selfTimes(t, -10, 500, () => true)], [75, 25, 10]);
  assert.deepEqual([...js.selfTimes(t, 20, 45, () => true)], [10, 10, 5]);
  assert.deepEqual([...js.selfTimes(t, 0, 500, k => k.kind === "gpu")], [0, 0, 0]);
});

test("an event knows its collective by its begin or its end", () => {
  const ms = x => new Float64Array(x.map(v => v * 1e6)), c = { n: 3, ranks: 2, start: ms([10, 12, 200, NaN, 300, 305]), end: ms([60, 60, 260, NaN, 390, 391]) };
  assert.deepEqual([[0, 10, 15], [1, 30, 60], [0, 250, 260], [1, 200, 205], [1, 305, 310]].map(([r, a, b]) => js.collectiveOf(c, r, a * 1e6, b * 1e6)), [0, 0, 1, -1, 2]);
});

test("times are said in the unit that fits", () => {
  assert.deepEqual([0, 640, 12_340, 4.56e6, 41e6, 1.2345e9, 12.3e9, 75e9, -2e6].map(js.time), ["0 ns", "640 ns", "12.3 µs", "4.56 ms", "41.0 ms", "1.234 s", "12.30 s", "1 min 15.0 s", "−2.00 ms"]);
  assert.deepEqual([js.tick(1000, 8), js.tick(2.5e9, 9), js.tickLabel(5e8, 5e8, 2e9), js.tickLabel(1.25e6, 5e4, 4e6), js.tickLabel(0, 1, 5)], [200, 5e8, "0.5 s", "1.25 ms", "0"]);
  assert.deepEqual([js.tickBase(0, 1e9), js.tickBase(5e9, 5e9 + 1e6), js.tickBase(1.5e6, 2e6)], [0, 5e9, 0]);
  assert.deepEqual([js.bytes(512), js.bytes(8.83e6), js.bytes(3e9)], ["512 B", "8.42 MiB", "2.79 GiB"]);
});

test("a moment is text, and back", () => {
  const m = { a: 12.4, b: 99e9, pick: { rank: 2, row: 7, ts: 123456789012 } };
  assert.deepEqual(js.momentOf(js.momentText(m)), { a: 12, b: 99e9, pick: m.pick });
  assert.deepEqual([js.momentOf("t=-5-20"), js.momentOf("nonsense"), js.momentOf("t=9-3")], [{ a: -5, b: 20, pick: null }, null, null]);
});

test("what an event was called with", () => {
  assert.deepEqual(js.argsOf('{"Input Dims":[[8]],"Stream":"7"}'), [["Input Dims", "[[8]]"], ["Stream", "7"]]);
  assert.deepEqual([js.argsOf(""), js.argsOf("{broken")], [[], [["args", "{broken"]]]);
});
