// The widget's pure helpers, without a browser.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

// the source is loaded as the notebook loads it: as one self-contained module
const source = readFileSync(new URL("../../dtnb/static/progress.js", import.meta.url), "utf8");
const js = await import("data:text/javascript;base64," + Buffer.from(source).toString("base64"));

test("numbers are short and of a steady length", () => {
  assert.equal(js.duration(3.4), "3s");
  assert.equal(js.duration(75), "1m 15s");
  assert.equal(js.duration(null), "");
  assert.equal(js.bytes(0), "0 B");
  assert.equal(js.bytes(1048576), "1.00 MiB");
  assert.equal(js.rate(12.34), "12.3 it/s");
  assert.equal(js.rate(0.25, "step"), "4.00 s/step");
  assert.equal(js.percent(0.999), "99%");
  assert.equal(js.percent(1), "100%");
  assert.equal(js.number(0.0153), "0.01530");
});

test("ranks fold into ranges", () => {
  assert.equal(js.ranges([0, 1, 2, 5]), "0-2, 5");
});

test("a sparkline leaves out what is not a number", () => {
  assert.equal(js.sparkPath([]), "");
  assert.equal(js.sparkPath([NaN, null]), "");
  assert.equal((js.sparkPath([1, 2, NaN, 3, 4]).match(/M/g) ?? []).length, 2);
});

test("a lane tells where a rank is", () => {
  const bar = (n, total) => ({ n, total, unit: "it", desc: "", rate: null, eta: null });
  assert.equal(js.steps({ bar: bar(2, 3), inner: bar(120, 500) }), "2/3 · 120/500");
  assert.equal(js.mainScalar({ lr: {}, train_loss: {} }), "train_loss");
  assert.equal(js.inWords({ type: "Died", message: "its process ended with exit code 3" }), "its process ended with exit code 3");
  assert.equal(js.inWords({ type: "ValueError", message: "bad batch\nmore" }), "ValueError: bad batch");
});

test("a click on the strip finds its rank, also for 1,024 of them", () => {
  const grid = js.gridFor(1024, 800), pitch = grid.size + grid.gap;
  assert.ok(grid.height <= 140 && grid.cols * grid.rows >= 1024);
  assert.equal(js.cellAt(grid, 1024, 1, 1), 0);
  assert.equal(js.cellAt(grid, 1024, 3 * pitch + 1, 2 * pitch + 1), 2 * grid.cols + 3);
  assert.equal(js.cellAt(grid, 1024, 1, 1000 * pitch), -1);
});

test("the module draws with text, never with markup", () => {
  assert.ok(!/innerHTML|outerHTML|insertAdjacentHTML/.test(source));
});
