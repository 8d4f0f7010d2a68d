// The pure helpers of the progress widget: node --test tests/js/
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

// anywidget loads the file as a module through a URL, and so does this: it must stand alone.
const source = readFileSync(new URL("../../dtnb/static/progress.js", import.meta.url), "utf8");
const js = await import("data:text/javascript;base64," + Buffer.from(source).toString("base64"));

test("a duration has at most two units", () => {
  assert.deepEqual([0.04, 59.6, 72, 3725, 200000, null, NaN].map(js.duration), ["0s", "1m 00s", "1m 12s", "1h 02m", "2d 07h", "", ""]);
});

test("bytes have at most four digits", () => {
  assert.deepEqual([512, 1_300_000, 3.2e9, 81e9, 5e14, null].map(js.bytes), ["512 B", "1.24 MiB", "2.98 GiB", "75.4 GiB", "455 TiB", ""]);
});

test("a slow rate is said the other way round", () => {
  assert.deepEqual([null, 0, 12.34, 0.25, 5200].map(r => js.rate(r)), ["", "", "12.3 it/s", "4.00 s/it", "5,200 it/s"]);
  assert.equal(js.rate(3, "batch"), "3.00 batch/s");
});

test("numbers keep four digits, and NaN stays a word", () => {
  assert.deepEqual([0, 0.5321, 12.3456, 0.00012, 1e7, 4321.9, "nan", null].map(js.number), ["0", "0.5321", "12.35", "1.20e-4", "1.00e+7", "4322", "nan", ""]);
  assert.deepEqual([1234, 0.125, null].map(js.count), ["1,234", "0.13", ""]);
});

test("percent is rounded down, so that 100% is the end", () => {
  assert.deepEqual([0, 0.29, 0.999, 1, null].map(js.percent), ["0%", "29%", "99%", "100%", ""]);
});

test("ranks are said as ranges", () => {
  assert.equal(js.ranges([5, 0, 1, 2]), "0-2, 5");
  assert.equal(js.ranges([...Array(20).keys()].map(i => 2 * i), 2), "0, 2 and 18 more");
  assert.equal(js.ranges([]), "");
});

test("a sparkline spans its box and has gaps", () => {
  assert.equal(js.sparkPath([0, 1], 10, 10, 1), "M1 9L9 1");
  assert.equal(js.sparkPath([0, null, 1], 10, 10, 1), "M1 9M9 1");
  assert.equal(js.sparkPath([2, 2], 10, 10, 1), "M1 5L9 5");
  assert.equal(js.sparkPath([null], 10, 10), "");
  assert.match(js.sparkPath([3], 10, 10), /h0\.01$/);
});

test("the loss is drawn first", () => {
  assert.equal(js.mainScalar({ lr: {}, train_loss: {} }), "train_loss");
  assert.equal(js.mainScalar({ lr: {} }), "lr");
  assert.equal(js.mainScalar({}), null);
});

test("steps tell both loops", () => {
  const bar = (n, total) => ({ n, total, unit: "it" });
  assert.equal(js.steps({ bar: bar(2, 3), inner: bar(1200, 5000) }), "2/3 · 1,200/5,000");
  assert.equal(js.steps({ bar: bar(7, null), inner: null }), "7 it");
  assert.equal(js.steps({ bar: null, inner: null }), "");
});

test("an error is one line; a death needs no type", () => {
  assert.equal(js.inWords({ type: "ValueError", message: "bad\nbatch" }), "ValueError: bad");
  assert.equal(js.inWords({ type: "Died", message: "killed by SIGKILL" }), "killed by SIGKILL");
});

test("a grid holds every rank and a point finds its cell", () => {
  for (const n of [33, 256, 1024, 8192]) for (const width of [240, 700, 1400]) {
    const g = js.gridFor(n, width), pitch = g.size + g.gap;
    assert.ok(g.cols * g.rows >= n && g.width <= width);
    for (const i of [0, Math.min(g.cols, n) - 1, n - 1]) assert.equal(js.cellAt(g, n, (i % g.cols) * pitch + 1, Math.floor(i / g.cols) * pitch + 1), i);
    assert.equal(js.cellAt(g, n, g.cols * pitch + 1, 1), -1);
  }
  assert.ok(js.gridFor(1024, 1000).height <= 150);
});

test("a rank is read out of the binary table", () => {
  const cells = new DataView(new Float32Array([2, 0.5, 10, 20, 4, 0.25, 1024, 0, -1, -1, -1, -1, NaN, -1]).buffer);
  const [one, two] = [0, 1].map(i => js.cellRow(cells, i, "loss", "it"));
  assert.deepEqual([one.state, one.fraction, one.bar.n, one.bar.total, one.bar.rate, one.scalars.loss.last, one.rss], ["running", 0.5, 10, 20, 4, 0.25, 1024]);
  assert.deepEqual([two.state, two.fraction, two.bar, two.rss, Object.keys(two.scalars)], ["pending", null, null, null, []]);
});
