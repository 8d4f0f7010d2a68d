// @ts-check
// Draws the launchpad: a form, cards of jobs, the cluster's tables. Holds no truth: what it shows is what Python sent last, and what is being typed on this page.
// The lanes of a job are progress.js's own drawing, whose text comes with the model: static files can't import each other.

/** @typedef {{name: string, label: string, kind: string, choices: [string, string][], hint: string, value: string, default: string, error: string}} Field */
/** @typedef {{lines: [string, boolean][], text: string, edited: boolean, editable: boolean, error: string}} Script */
/** @typedef {{name: string, kind: string, type: string, bytes: ?number}} Part */
/** @typedef {{token: string, target: string, targets: {name: string, label: string, hint: string}[], fields: Field[], script: Script, error: string, name: string, call: string,
 *   payload: {words: string, parts: Part[], error: string}, check: {state: string, words: string}, submit: {state: string, words: string, job: string}}} Form */
/** @typedef {{id: string, name: string, launcher: string, slurm: string, state: string, why: string, ranks: string, created: number, attempt: number, elapsed: ?number, left: ?number, fraction: ?number, world: number,
 *   limit: ?number, ahead: string, start: string, cost: string, efficiency: string, saved: ?number, can: string[], open: boolean, doing: string, error: string}} Card */
/** @typedef {{name: string, head: string[], rows: string[][], right: number[], tones: string[], empty: string, left: number}} Table */
/** @typedef {{get: (key: string) => any, on: (name: string, fn: () => void) => void, off: (name: string, fn: () => void) => void, send: (content: object) => void}} Model */

const PAUSE = 250, ALIVE = 15000, FEW = 12, OTHER = "\u0000other";

// ---- pure helpers, tested by node --test

/** How a field is drawn: as an input, a select, or a select whose value is none of its choices. @param {Field} f @param {boolean} [other] */
export function modeOf(f, other = false) {
  if (!f.choices.length || f.kind !== "choice" && f.kind !== "pick") return f.kind === "lines" ? "lines" : "input";
  return f.kind === "choice" && (other || !f.choices.some(c => c[0] === f.value)) ? "other" : "select";
}

/** Whether a field differs from its default. @param {Field} f */
export function changed(f) { return !!f.value.trim() && f.value.trim() !== f.default; }

/** What stands below a field: what is wrong, else the limit and, where the value differs, the default. @param {Field} f */
export function noteOf(f) {
  if (f.error) return f.error;
  return [f.hint, changed(f) && f.default && f.kind !== "choice" ? `default: ${f.default}` : ""].filter(x => x).join(" · ");
}

/** The facts of a job's second line. @param {Card} c @param {number} more seconds since the card was sent @param {(s: ?number) => string} duration */
export function factsOf(c, more, duration) {
  const over = !["pending", "starting", "running"].includes(c.state), ran = c.elapsed == null ? null : c.elapsed + (over ? 0 : more);
  return [c.slurm ? `Slurm job ${c.slurm}` : c.launcher === "Torchrun" ? "torchrun" : c.launcher.toLowerCase(), c.ranks, c.start, c.ahead,
    c.limit && ran != null && !over ? `${duration(Math.max(0, c.limit - ran))} of ${duration(c.limit)} left to its limit` : c.limit ? `limit ${duration(c.limit)}` : "",
    c.cost, c.efficiency, c.saved != null ? `saved step ${c.saved}` : "", c.attempt ? `attempt ${c.attempt + 1}` : ""].filter(x => x);
}

/** How far and how long. @param {Card} c @param {number} more @param {(s: ?number) => string} duration */
export function timeOf(c, more, duration) {
  const over = !["pending", "starting", "running"].includes(c.state);
  return [c.elapsed == null ? "" : duration(c.elapsed + (over ? 0 : more)), c.left == null || over ? "" : `${duration(Math.max(0, c.left - more))} left`].filter(x => x).join(" · ");
}

/** What to say aloud: jobs whose state has changed. @param {Map<string, string>} before @param {Card[]} cards */
export function newsOf(before, cards) { return cards.filter(c => before.has(c.id) && before.get(c.id) !== c.state).map(c => `${c.name} ${c.state}${c.why ? `: ${c.why}` : ""}`).join("; "); }

/** Rows that hold all words of a filter. @param {string[][]} rows @param {string} words */
export function filtered(rows, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(w => w);
  return rows.map((row, i) => ({ row, i })).filter(({ row }) => { const text = row.join(" ").toLowerCase(); return wanted.every(w => text.includes(w)); });
}

/** "1 line differs from the defaults". @param {Script} s */
export function marksOf(s) {
  const n = s.lines.filter(l => l[1]).length, what = s.edited ? "the form's" : "the defaults";
  return n ? `${n} line${n > 1 ? "s" : ""} differ${n > 1 ? "" : "s"} from ${what}` : "";
}

// ---- drawing

/** @param {string} tag @param {string} name @param {...(Node|string)} inside @returns {any} */
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
/** @param {string} label @param {() => void} act @param {string} [title] */
function button(label, act, title = "") {
  const b = h("button", "dtnb-button", label);
  b.type = "button";
  if (title) b.title = title;
  b.addEventListener("click", act);
  return b;
}

/** Send what is typed after a pause, and at once when the field is left. @param {(text: string) => void} send */
function later(send) {
  let timer = 0, text = "";
  return { type(/** @type {string} */ t) { text = t; clearTimeout(timer); timer = window.setTimeout(() => { timer = 0; send(text); }, PAUSE); }, flush() { if (timer) { clearTimeout(timer); timer = 0; send(text); } } };
}

async function copy(/** @type {string} */ text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* no permission, or no https */ }
  const area = h("textarea", "dtnb-live", text);
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

let ids = 0;
const HERE = Math.random().toString(36).slice(2, 8);   // each launchpad of a page is a module of its own
/** @type {Map<string, Promise<any>>} */ const modules = new Map();
/** The drawing of lanes. @param {string} text @returns {Promise<any>} */
function lanesModule(text) {
  if (!modules.has(text)) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    modules.set(text, import(/* webpackIgnore: true */ url).finally(() => URL.revokeObjectURL(url)));
  }
  return /** @type {Promise<any>} */ (modules.get(text));
}

/** One field. @param {string} name @param {(text: string) => void} send */
function fieldRow(name, send) {
  const id = `dtnb-field-${HERE}-${++ids}`, label = h("label", "", ""), mark = h("span", "dtnb-mark"), note = h("div", "dtnb-hint"), slot = h("div", "dtnb-slot"), row = h("div", "dtnb-field", h("div", "dtnb-label-line", label, mark), slot, note);
  const slow = later(send);
  /** @type {?string} */ let typed = null;
  let other = false, mode = "", /** @type {any} */ input = null, /** @type {any} */ select = null, drawn = "";
  note.id = `${id}-note`;
  mark.title = "differs from the default";
  label.htmlFor = id;
  const say = (/** @type {string} */ text, now = false) => { typed = text; slow.type(text); if (now) slow.flush(); };
  function build(/** @type {Field} */ f) {
    mode = modeOf(f, other);
    input = select = null;
    drawn = "";
    if (mode === "select" || mode === "other") {
      select = h("select", "dtnb-input");
      select.addEventListener("change", () => { other = select.value === OTHER; if (!other) say(select.value, true); else { build(f); paint({ ...f, value: "" }); input?.focus(); } });
    }
    if (mode !== "select") {
      input = h(mode === "lines" ? "textarea" : "input", "dtnb-input");
      if (mode === "lines") input.rows = 2; else input.type = "text";
      input.spellcheck = false;
      input.autocomplete = "off";
      input.addEventListener("input", () => say(input.value));
      input.addEventListener("change", () => slow.flush());
    }
    slot.replaceChildren(...[select, input].filter(x => x));
    for (const x of [select, input]) x?.setAttribute("aria-describedby", note.id);
    (input ?? select).id = id;
    if (input && select) { select.setAttribute("aria-label", f.label); select.id = `${id}-choice`; }
  }
  function paint(/** @type {Field} */ f) {
    const value = typed ?? f.value;
    set(label, f.label);
    attr(row, "data-field", name);
    row.classList.toggle("dtnb-wrong", !!f.error);
    row.classList.toggle("dtnb-changed", changed({ ...f, value }));
    set(mark, changed({ ...f, value }) ? "changed" : "");
    set(note, noteOf(f));
    for (const x of [select, input]) if (x) attr(x, "aria-invalid", String(!!f.error));
    if (select) {
      const key = JSON.stringify([f.choices, mode]);
      if (key !== drawn) {
        drawn = key;
        select.replaceChildren(...f.choices.map(([v, l]) => { const o = h("option", "", l); o.value = v; return o; }), ...(f.kind === "choice" ? [(() => { const o = h("option", "", "other…"); o.value = OTHER; return o; })()] : []));
      }
      const wanted = mode === "other" ? OTHER : value;
      if (select.value !== wanted) select.value = wanted;
    }
    if (input) {
      input.placeholder = f.kind === "lines" ? "" : f.default;
      if (input.value !== value && input !== document.activeElement) input.value = value;
    }
  }
  return { row, flush: () => slow.flush(), forget() { typed = null; other = false; if (input) input.value = ""; },
    draw(/** @type {Field} */ f) {
      if (typed === f.value) typed = null;
      if (other && f.value && f.choices.some(c => c[0] === f.value) && input !== document.activeElement) other = false;
      const shown = { ...f, value: typed ?? f.value };
      if (modeOf(shown, other) !== mode && !(mode === "other" && input === document.activeElement)) build(shown);
      paint(f);
    } };
}

/** @param {(content: object) => void} send */
function formPart(send) {
  const targets = h("div", "dtnb-targets"), fields = h("div", "dtnb-fields"), error = h("div", "dtnb-error"), call = h("code", "dtnb-call"), size = h("span", "dtnb-quiet"), parts = h("div", "dtnb-parts");
  const check = h("div", "dtnb-check", h("span", "dtnb-dot"), h("span", "dtnb-words")), sent = h("span", "dtnb-sent"), note = h("span", "dtnb-quiet");
  const kind = h("b", "", ""), badge = h("span", "dtnb-mark"), pre = h("pre", "dtnb-script"), area = h("textarea", "dtnb-script"), wrong = h("div", "dtnb-error");
  let editing = false, expected = false, token = "", /** @type {?Form} */ now = null, script = /** @type {?string} */ (null);
  const slow = later(text => send({ request: "script", token, text }));
  const edit = button("Edit", () => { slow.flush(); editing = !editing; draw(); if (editing) { area.focus(); area.setSelectionRange(0, 0); area.scrollTop = 0; } });
  const back = button("Undo my edits", () => { slow.flush(); script = null; editing = false; send({ request: "script", token, text: "" }); }, "The script of the form again");
  const copied = button("Copy", async () => { const ok = await copy(now?.script.text ?? ""); set(copied, ok ? "Copied" : "Not copied"); window.setTimeout(() => set(copied, "Copy"), 1500); }, "Copy the script");
  const more = button("Show what is sent", () => { attr(more, "aria-expanded", String(more.getAttribute("aria-expanded") !== "true")); draw(); });
  const submit = button("Submit", () => { slow.flush(); for (const r of rows.values()) r.flush?.(); if (submit.getAttribute("aria-disabled") !== "true") send({ request: "submit", token }); });
  const again = button("New job like it", () => send({ request: "again" }));
  submit.classList.add("dtnb-submit");
  attr(more, "aria-expanded", "false");
  pre.tabIndex = 0;
  area.spellcheck = false;
  attr(area, "aria-label", "script");
  area.addEventListener("input", () => { script = area.value; slow.type(area.value); });
  area.addEventListener("change", () => slow.flush());
  check.setAttribute("aria-live", "polite");
  attr(targets, "role", "radiogroup");
  attr(targets, "aria-label", "where it runs");
  /** @type {Map<string, any>} */ const rows = new Map(), /** @type {Map<string, any>} */ chosen = new Map();
  const left = h("div", "dtnb-left", targets, fields, error), columns = h("div", "dtnb-columns"), right = h("div", "dtnb-right", h("div", "dtnb-script-head", kind, badge, h("span", "dtnb-grow"), back, edit, copied), pre, area, wrong, h("div", "dtnb-sends", call, size, more), parts);
  const foot = h("div", "dtnb-foot", check, h("span", "dtnb-grow"), sent, again, submit), body = h("section", "dtnb-form", columns, foot);
  columns.append(left, right);
  sent.setAttribute("aria-live", "polite");
  attr(body, "aria-label", "new job");

  function drawTargets(/** @type {Form} */ f) {
    for (const t of f.targets) {
      let r = chosen.get(t.name);
      if (!r) {
        const radio = h("input", ""), id = `dtnb-target-${HERE}-${++ids}`;
        Object.assign(radio, { type: "radio", name: id, id });
        radio.addEventListener("change", () => send({ request: "set", token, field: "target", text: t.name }));
        r = { radio, label: h("label", "dtnb-target", radio, h("span", "", t.label)) };
        r.label.title = t.hint;
        chosen.set(t.name, r);
        targets.append(r.label);
      }
      r.radio.checked = t.name === f.target;
      r.label.classList.toggle("dtnb-chosen", t.name === f.target);
    }
    const group = `dtnb-where-${f.token}`;
    for (const r of chosen.values()) r.radio.name = group;
  }

  function drawScript(/** @type {Form} */ f) {
    const s = f.script, text = script ?? s.text;
    if (script != null && s.text === script) script = null;
    set(kind, f.target === "Slurm" ? "Batch script" : f.target === "Local" ? "What runs" : "What runs on each host");
    set(badge, s.edited ? "edited by hand" : "");
    edit.hidden = !s.editable || !s.text;
    pre.title = s.editable ? "" : "It follows from the form, and can't be edited";
    set(edit, editing ? "Done" : "Edit");
    edit.title = "JOB_DIR becomes the job's folder. Nodes, tasks and the srun line stay as the form has them";
    back.hidden = !s.edited;
    copied.hidden = !s.text;
    area.hidden = !editing;
    pre.hidden = editing || !s.lines.length;
    if (editing && area.value !== text && area !== document.activeElement) area.value = text;
    area.rows = Math.min(24, Math.max(6, text.split("\n").length));
    const key = JSON.stringify(s.lines);
    if (!editing && pre.dataset.key !== key) {
      pre.dataset.key = key;
      pre.replaceChildren(...s.lines.map(([line, mark]) => h("span", mark ? "dtnb-new" : "", line + "\n")));
      attr(pre, "aria-label", [kind.textContent ?? "", marksOf(s)].filter(x => x).join(", "));
    }
    set(wrong, s.error);
    wrong.hidden = !s.error;
  }

  function drawPayload(/** @type {Form} */ f) {
    const open = more.getAttribute("aria-expanded") === "true", p = f.payload;
    set(call, f.call);
    set(size, p.error ? "" : p.words);
    more.hidden = !p.parts.length && !p.error;
    set(more, p.error ? "It can't be sent" : open ? "Hide" : `Show ${p.parts.length} captured`);
    more.classList.toggle("dtnb-bad", !!p.error);
    parts.hidden = !open;
    if (open) parts.replaceChildren(...(p.error ? [h("div", "dtnb-error", p.error)] : p.parts.map(x => h("div", "dtnb-part", h("code", "", x.name), h("span", "dtnb-quiet", `${x.kind}, ${x.type}`), h("span", "dtnb-quiet", x.bytes == null ? "can't be pickled" : x.bytes ? sizeOf(x.bytes) : "imported there")))));
  }

  function draw() {
    const f = now;
    body.hidden = !f?.token;
    if (!f?.token) return;
    const fresh = token !== f.token;
    if (fresh) { token = f.token; script = null; editing = false; for (const r of rows.values()) r.forget(); }
    drawTargets(f);
    const there = new Set(f.fields.map(x => `${f.target}.${x.name}`));
    f.fields.forEach((x, i) => {
      const key = `${f.target}.${x.name}`;
      let r = rows.get(key);
      if (!r) { r = fieldRow(x.name, text => send({ request: "set", token, field: x.name, text })); rows.set(key, r); }
      if (fields.children[i] !== r.row) fields.insertBefore(r.row, fields.children[i] ?? null);
      r.draw(x);
    });
    for (const [key, r] of rows) if (!there.has(key)) { r.row.remove(); rows.delete(key); }
    set(error, f.error);
    error.hidden = !f.error;
    drawScript(f);
    drawPayload(f);
    attr(check, "data-tone", { ok: "done", bad: "failed", asking: "starting", late: "late", idle: "pending" }[f.check.state] ?? "pending");
    check.hidden = f.check.state === "idle";
    set(check.lastChild, f.check.words);
    const busy = f.submit.state === "sending", done = f.submit.state === "sent", wrongs = f.error || f.script.error || f.payload.error || f.fields.some(x => x.error);
    const had = done && document.activeElement === submit;
    submit.hidden = columns.hidden = done;
    again.hidden = !done;
    if (done) check.hidden = true;
    if (had) again.focus();
    if (fresh && expected) { expected = false; body.scrollIntoView({ block: "nearest" }); chosen.get(f.target)?.radio.focus(); }
    set(submit, busy ? "Submitting…" : f.target === "Slurm" ? "Submit" : "Launch");
    attr(submit, "aria-disabled", String(!!(busy || wrongs)));
    submit.title = wrongs ? "Something above has to be mended first" : "";
    set(sent, done ? `${f.call} was ${f.submit.words}` : f.submit.words);
    attr(sent, "data-tone", f.submit.state === "failed" ? "failed" : "done");
    sent.hidden = !f.submit.words;
  }
  return { body, expect() { expected = true; }, draw(/** @type {Form} */ f) { now = f; draw(); } };
}

/** @param {number} b */
export function sizeOf(b) { return b < 1000 ? `${b} B` : b < 1e6 ? `${(b / 1e3).toPrecision(3)} kB` : `${(b / 1e6).toPrecision(3)} MB`; }

/** A job. @param {string} id @param {any} P progress.js @param {(content: object) => void} send @param {() => any} frames @param {() => any} logs */
function cardPart(id, P, send, frames, logs) {
  const dot = h("span", "dtnb-dot"), name = h("b", "dtnb-name"), state = h("span", "dtnb-word"), why = h("span", "dtnb-note"), part = h("span", "dtnb-percent"), time = h("span", "dtnb-time"), facts = h("div", "dtnb-card-facts");
  const bar = P.meter(`progress of ${id}`), error = h("div", "dtnb-error"), inside = h("div", "dtnb-inside"), lanes = h("div", "dtnb-lanes-slot"), more = `dtnb-ranks-${HERE}-${++ids}`;
  const open = button("Ranks", () => send({ request: "open", job: id, open: open.getAttribute("aria-expanded") !== "true" })), act = (/** @type {string} */ what) => () => send({ request: what, job: id });
  const cancel = P.cancelButton(() => { act("cancel")(); if (document.activeElement === cancel.button) open.focus(); }), requeue = button("Requeue", act("requeue"), "Save on all ranks, and go on in another attempt"), resume = button("Go on", act("resume"), "A new job that goes on from what this one saved"), clone = button("Clone and edit", act("clone"), "A new form with what this job asked for");
  const rank = h("select", "dtnb-input"), log = h("pre", "dtnb-script dtnb-log"), logHead = h("div", "dtnb-script-head", h("span", "dtnb-quiet", "log of rank"), rank);
  const head = h("div", "dtnb-head", dot, name, state, why, part, time), body = h("article", "dtnb-card", head, bar.bar, facts, h("div", "dtnb-actions", open, requeue, resume, clone, h("span", "dtnb-grow"), cancel.button), error, inside);
  inside.append(lanes, logHead, log);
  inside.id = more;
  attr(open, "aria-controls", more);
  bar.bar.classList.add("dtnb-job");
  log.tabIndex = 0;
  attr(rank, "aria-label", "rank whose log is shown");
  rank.addEventListener("change", () => send({ request: "log", job: id, rank: Number(rank.value) }));
  /** @type {?Card} */ let now = null;
  let received = 0, stop = /** @type {?(() => void)} */ (null), handlers = /** @type {Record<string, Set<() => void>>} */ ({});
  const model = { get: () => frames()[id] ?? {}, send: (/** @type {any} */ c) => send({ ...c, job: id }), on: (/** @type {string} */ n, /** @type {() => void} */ fn) => { (handlers[n] ??= new Set()).add(fn); }, off: (/** @type {string} */ n, /** @type {() => void} */ fn) => { handlers[n]?.delete(fn); } };
  const self = {
    body, id, gone() { handlers.comm_live_update?.forEach(fn => fn()); },
    lanes() {
      const there = !!now?.open && !!frames()[id]?.job;
      if (there && !stop) stop = P.default.render({ model, el: lanes });
      else if (!there && stop) { stop(); stop = null; handlers = {}; lanes.replaceChildren(); }
      else handlers["change:frame"]?.forEach(fn => fn());
      const l = logs()[id];
      logHead.hidden = log.hidden = !there;
      if (!there || !l) return;
      const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      set(log, l.text || "nothing printed yet");
      if (end) log.scrollTop = log.scrollHeight;
      if (rank.value !== String(l.rank)) rank.value = String(l.rank);
    },
    clock() {
      if (!now) return;
      const since = (performance.now() - received) / 1000;
      set(time, timeOf(now, since, P.duration));
      const text = factsOf(now, since, P.duration);
      if (facts.dataset.key !== text.join("\u0001")) { facts.dataset.key = text.join("\u0001"); facts.replaceChildren(...text.map(t => h("span", "", t))); }
    },
    draw(/** @type {Card} */ c) {
      now = c;
      received = performance.now();
      attr(body, "data-job", id);
      attr(body, "data-state", c.state);
      attr(body, "aria-label", `job ${c.name}, ${c.state}`);
      attr(head, "data-tone", c.state);
      attr(body, "data-tone", c.state);
      set(name, c.name);
      name.title = id;
      set(state, c.state);
      set(why, c.doing || c.why);
      why.title = c.why;
      set(part, P.percent(c.fraction));
      bar.draw(c.fraction);
      bar.bar.hidden = c.fraction == null;
      cancel.button.hidden = !c.can.includes("cancel");
      const at = document.activeElement;
      for (const [b, what] of /** @type {[any, string][]} */ ([[requeue, "requeue"], [resume, "resume"], [clone, "clone"]])) { b.hidden = !c.can.includes(what); b.disabled = !!c.doing; }
      set(error, c.error);
      error.hidden = !c.error;
      set(open, c.open ? "Hide ranks" : "Ranks and logs");
      attr(open, "aria-expanded", String(c.open));
      inside.hidden = !c.open;
      if (at instanceof HTMLElement && body.contains(at) && at.closest("[hidden]")) open.focus();   // not lost to the notebook
      if (rank.options.length !== c.world) rank.replaceChildren(...Array.from({ length: c.world }, (_, i) => { const o = h("option", "", String(i)); o.value = String(i); return o; }));
      self.clock();
      self.lanes();
    },
    stop() { stop?.(); cancel.stop(); },
  };
  return self;
}

/** The cluster's tables. @param {(content: object) => void} send */
function panePart(send) {
  const open = button("Cluster", () => send({ request: "pane", open: open.getAttribute("aria-expanded") !== "true" }), "Partitions, nodes, and your jobs in the queue"), asof = h("span", "dtnb-quiet"), trouble = h("div", "dtnb-trouble"), find = h("input", "dtnb-input dtnb-find"), tables = h("div", "dtnb-tables"), inside = h("div", "dtnb-inside", find, tables);
  const body = h("section", "dtnb-pane", h("div", "dtnb-pane-head", open, asof), trouble, inside);
  Object.assign(find, { type: "search", placeholder: "Filter rows", spellcheck: false });
  find.setAttribute("aria-label", "filter rows");
  attr(body, "aria-label", "cluster");
  trouble.setAttribute("aria-live", "polite");
  /** @type {Set<string>} */ const whole = new Set();
  /** @type {any} */ let now = null;
  let key = "";
  function table(/** @type {Table} */ t) {
    const found = filtered(t.rows, find.value), shown = whole.has(t.name) || find.value ? found : found.slice(0, FEW), used = t.head.map((_, k) => t.rows.some(r => r[k]));
    const cell = (/** @type {string} */ tag, /** @type {string} */ text, /** @type {number} */ k) => h(tag, t.right.includes(k) ? "dtnb-right-cell" : "", text);
    const head = h("tr", "", ...t.head.flatMap((x, k) => used[k] ? [cell("th", x, k)] : [])), rows = shown.map(({ row, i }) => { const r = h("tr", "", ...row.flatMap((x, k) => used[k] ? [cell("td", x, k)] : [])); r.dataset.tone = t.tones[i] ?? ""; return r; });
    const rest = found.length - shown.length, scroll = h("div", "dtnb-scroll", h("table", "dtnb-table", h("thead", "", head), h("tbody", "", ...rows)));
    scroll.tabIndex = 0;
    attr(scroll, "role", "region");
    attr(scroll, "aria-label", t.name);
    const out = h("div", "dtnb-one", h("div", "dtnb-table-name", h("b", "", t.name), h("span", "dtnb-quiet", t.rows.length ? `${t.rows.length + t.left}` : "")), t.rows.length ? scroll : h("div", "dtnb-quiet", t.empty));
    if (rest > 0) out.append(button(`Show ${rest} more`, () => { whole.add(t.name); key = ""; draw(); }));
    if (t.left) out.append(h("div", "dtnb-quiet", `and ${t.left} more, which are not shown here`));
    return out;
  }
  function draw() {
    if (!now) return;
    attr(open, "aria-expanded", String(!!now.open));
    set(open, now.open ? "Hide the cluster" : "Cluster");
    set(trouble, now.trouble);
    trouble.hidden = !now.trouble;
    set(asof, now.asof && now.open && !now.trouble ? `as of ${new Date(now.asof * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })}` : "");
    inside.hidden = !now.open || !now.asof;
    const fresh = JSON.stringify([now.open, now.tables, find.value, [...whole]]);
    if (now.open && fresh !== key) { key = fresh; tables.replaceChildren(...(now.tables ?? []).map(table)); }
  }
  find.addEventListener("input", draw);
  return { body, draw(/** @type {any} */ p) { now = p; draw(); } };
}

/** @param {{model: Model, el: HTMLElement}} props */
async function render({ model, el }) {
  const P = await lanesModule(model.get("drawing"));
  let gone = false;
  const send = (/** @type {any} */ content) => {
    if (gone) return;
    if (["clone", "again"].includes(content.request)) form.expect();
    model.send(content);
  };
  const form = formPart(send), pane = panePart(send), cards = h("div", "dtnb-cards"), none = h("div", "dtnb-quiet"), older = button("", () => send({ request: "older" })), live = h("div", "dtnb-live"), lost = h("div", "dtnb-trouble", "Its kernel has gone or restarted: run the cell again. Jobs go on without it.");
  const close = button("Close", () => send({ request: "close" }), "Leave a table of the jobs in the notebook; they go on"), title = h("b", "dtnb-name", "Launchpad"), about = h("span", "dtnb-note");
  const jobs = h("section", "dtnb-jobs", h("div", "dtnb-table-name", h("b", "", "Jobs"), none), cards, older);
  const root = h("div", "dtnb-progress dtnb-pad", h("div", "dtnb-head", title, about, close), lost, form.body, jobs, pane.body, live);
  live.setAttribute("aria-live", "polite");
  attr(jobs, "aria-label", "jobs");
  lost.hidden = true;
  el.append(root);
  /** @type {Map<string, ReturnType<typeof cardPart>>} */ const shown = new Map();
  let states = new Map();

  function drawCards() {
    const { list, older: rest, loading } = model.get("cards") ?? {}, all = /** @type {Card[]} */ (list ?? []);
    all.forEach((c, i) => {
      let card = shown.get(c.id);
      if (!card) { card = cardPart(c.id, P, send, () => model.get("frames") ?? {}, () => model.get("logs") ?? {}); shown.set(c.id, card); }
      if (cards.children[i] !== card.body) cards.insertBefore(card.body, cards.children[i] ?? null);
      card.draw(c);
    });
    for (const [id, card] of shown) if (!all.some(c => c.id === id)) { card.stop(); card.body.remove(); shown.delete(id); }
    set(none, loading ? "looking for jobs…" : all.length ? "" : "none yet");
    older.hidden = !rest;
    set(older, `Show older jobs (${rest})`);
    set(live, newsOf(states, all) || live.textContent || "");
    states = new Map(all.map(c => [c.id, c.state]));
  }
  const drawForm = () => { const f = model.get("form"); set(about, f?.token ? "" : "dtnb.launchpad(train, lr=1e-3) has a form for a function, %%launchpad for a cell"); form.draw(f); };
  const drawPane = () => pane.draw(model.get("pane")), drawLanes = () => { for (const c of shown.values()) c.lanes(); };
  const left = () => { gone = true; lost.hidden = false; root.classList.add("dtnb-gone"); for (const c of shown.values()) c.gone(); };
  const alive = () => { if (document.visibilityState === "visible" && root.isConnected) send({ request: "alive" }); };
  const said = /** @type {[string, () => void][]} */ ([["change:form", drawForm], ["change:cards", drawCards], ["change:pane", drawPane], ["change:frames", drawLanes], ["change:logs", drawLanes], ["comm_live_update", left]]);
  for (const [name, fn] of said) model.on(name, fn);
  const tick = setInterval(() => { for (const c of shown.values()) c.clock(); }, 1000), pulse = setInterval(alive, ALIVE);
  document.addEventListener("visibilitychange", alive);
  drawForm();
  drawCards();
  drawPane();
  alive();
  return () => {
    for (const [name, fn] of said) model.off(name, fn);
    clearInterval(tick);
    clearInterval(pulse);
    document.removeEventListener("visibilitychange", alive);
    for (const c of shown.values()) c.stop();
  };
}

export default { render };
