// The pure helpers of the launchpad: node --test tests/js/
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const load = name => import("data:text/javascript;base64," + Buffer.from(readFileSync(new URL(`../../dtnb/static/${name}.js`, import.meta.url), "utf8")).toString("base64"));
const js = await load("launchpad"), lanes = await load("progress");

const field = more => ({ name: "nodes", label: "Nodes", kind: "number", choices: [], hint: "up to 4", value: "", default: "1", error: "", ...more });
const card = more => ({ id: "j", name: "train", launcher: "Slurm", slurm: "7", state: "running", why: "", ranks: "4 ranks on 2 nodes", attempt: 0, elapsed: 60, left: 30, fraction: 0.5, limit: 600, ahead: "", start: "", cost: "GPU-hours: 4 asked, 1 used", efficiency: "", saved: null, ...more });

test("a choice may be other than what is known", () => {
  const choices = [["", "main"], ["low", "low"]];
  assert.equal(js.modeOf(field()), "input");
  assert.equal(js.modeOf(field({ kind: "lines" })), "lines");
  assert.equal(js.modeOf(field({ kind: "choice" })), "input", "nothing is known yet: it is typed");
  assert.equal(js.modeOf(field({ kind: "choice", choices })), "select");
  assert.equal(js.modeOf(field({ kind: "choice", choices, value: "hidden" })), "other");
  assert.equal(js.modeOf(field({ kind: "choice", choices }), true), "other");
  assert.equal(js.modeOf(field({ kind: "pick", choices, value: "hidden" })), "select");
});

test("a field says what is wrong, else its limit, and its default once it differs", () => {
  assert.equal(js.noteOf(field()), "up to 4");
  assert.equal(js.noteOf(field({ value: "2" })), "up to 4 · default: 1");
  assert.equal(js.noteOf(field({ value: "1" })), "up to 4");
  assert.equal(js.noteOf(field({ value: "9", error: "this partition has at most 4" })), "this partition has at most 4");
  assert.deepEqual([field(), field({ value: " 1 " }), field({ value: "2" })].map(js.changed), [false, false, true]);
});

test("facts of a job that runs go on by themselves", () => {
  assert.deepEqual(js.factsOf(card(), 5, lanes.duration), ["Slurm job 7", "4 ranks on 2 nodes", "8m 55s of 10m 00s left to its limit", "GPU-hours: 4 asked, 1 used"]);
  assert.equal(js.timeOf(card(), 5, lanes.duration), "1m 05s · 25s left");
  assert.equal(js.timeOf(card({ state: "done" }), 5, lanes.duration), "1m 00s");
});

test("a job that waits says for what, and one that has ended how well it used its time", () => {
  const waits = card({ state: "pending", elapsed: null, left: null, start: "starts: no estimate yet", ahead: "about 3 jobs before it", cost: "" });
  assert.deepEqual(js.factsOf(waits, 5, lanes.duration), ["Slurm job 7", "4 ranks on 2 nodes", "starts: no estimate yet", "about 3 jobs before it", "limit 10m 00s"]);
  assert.equal(js.timeOf(waits, 5, lanes.duration), "");
  assert.ok(js.factsOf(card({ state: "done", efficiency: "CPU efficiency: not collected", saved: 12, attempt: 1 }), 0, lanes.duration).join().endsWith("CPU efficiency: not collected,saved step 12,attempt 2"));
});

test("only a change of state is said aloud", () => {
  const before = new Map([["j", "pending"]]);
  assert.equal(js.newsOf(before, [card(), card({ id: "new" })]), "train running");
  assert.equal(js.newsOf(new Map([["j", "running"]]), [card()]), "");
  assert.equal(js.newsOf(before, [card({ state: "failed", why: "rank 1: a & b" })]), "train failed: rank 1: a & b");
});

test("a filter takes all of its words, in any case", () => {
  const rows = [["1", "a | b \"x\"", "MAIN"], ["2", "train", "low"]];
  assert.deepEqual(js.filtered(rows, "main B").map(r => r.i), [0]);
  assert.deepEqual(js.filtered(rows, "").map(r => r.i), [0, 1]);
  assert.deepEqual(js.filtered(rows, "main low"), []);
});

test("differences are counted, from the defaults or from the form", () => {
  const lines = [["a", false], ["b", true]];
  assert.equal(js.marksOf({ lines, edited: false }), "1 line differs from the defaults");
  assert.equal(js.marksOf({ lines: [...lines, ["c", true]], edited: true }), "2 lines differ from the form's");
  assert.equal(js.marksOf({ lines: [["a", false]], edited: false }), "");
  assert.deepEqual([12, 1500, 2_340_000].map(js.sizeOf), ["12 B", "1.50 kB", "2.34 MB"]);
});
