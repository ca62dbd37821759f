// Presses every control of every page at 1366 and 390 pixels; tools/console/run.py starts it. A recorder in the page notes each button, field and
// menu that is seen, and each that is used: one that was seen and never used is a failure, and so is an error, a refusal, a request to
// `/undefined`, or a page that scrolls sideways. Controls that end something act on things of this test alone: rows with "press" in them.
// Note of a second session of h3 (started anew at 17:01 after an error of the API, while the first one still works here): this session writes
// tools/console/press.mjs and its call in tools/console/run.py, and touches nothing else; src/, tests/ and check.mjs are the first one's.
import { createRequire } from "node:module";
import { recorder } from "./recorder.mjs";

const require = createRequire(process.env.MODULES + "/");
const { chromium } = require("playwright-core");
const { CONSOLE } = process.env;
const WIDTHS = [1366, 390];
// presses of one page, dialogs included; a page that needs more has a control whose name changes with each press
const PRESSES_MAX = 200;
const LONG = "press-" + "long-name-".repeat(18);
const PAGES = ["overview", "diagnosis", "queues", "queue", "stream", "streams", "exchanges", "exchange", "topology", "route", "schedules", "shovels", "federation", "connections", "connection", "channels", "pipelines", "transactions", "admin", "log", "api"];
// controls that are seen and can't be used here, with the reason
const EXEMPT = [];

const failures = [], seen = new Map(), used = new Set();
const fail = (line) => { if (!failures.includes(line)) { failures.push(line); console.log("FAIL  " + line); } };
const credentials = "Basic " + Buffer.from("guest:guest").toString("base64");
async function ask(method, way, body) {
  const response = await fetch(CONSOLE + way, { method, headers: { authorization: credentials, "content-type": "application/json", "x-flintmq-request": "1" }, body: body === undefined ? undefined : JSON.stringify(body) });
  if (!response.ok) throw new Error(`${method} ${way}: ${response.status} ${await response.text()}`);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

// Things that may end: each width has its own.
async function prepare(width) {
  const own = (name) => `press-${width}-${name}`, vhost = "%2F", message = { headers: { tenant: "press" } };
  for (const name of [own("queue"), own("target"), LONG]) await ask("PUT", `/api/queues/${vhost}/${name}`, { durable: true });
  await ask("PUT", `/api/queues/${vhost}/${own("stream")}`, { durable: true, arguments: { "x-queue-type": "stream" } });
  for (const name of [own("exchange"), own("other"), LONG]) await ask("PUT", `/api/exchanges/${vhost}/${name}`, { type: "topic", durable: true });
  for (const [kind, name] of [["q", own("target")], ["q", LONG], ["e", own("other")]]) await ask("POST", `/api/bindings/${vhost}/e/${own("exchange")}/${kind}/${name}`, { routing_key: "press." + LONG.slice(0, 150), arguments: {} });
  await ask("POST", `/api/bindings/${vhost}/e/${own("other")}/q/${own("queue")}`, { routing_key: "press", arguments: {} });
  for (const queue of [own("queue"), own("stream"), LONG]) for (let number = 0; number < 45; number++) await ask("POST", `/api/v1/queues/${vhost}/${queue}/messages`, { body: JSON.stringify({ number, text: "x".repeat(number * 20) }), properties: message });
  for (let number = 0; number < 130; number++) await ask("POST", `/api/v1/queues/${vhost}/${own("queue")}/messages`, { body: "later", properties: { headers: { "x-delay": 3_600_000 } } });
  for (let number = 0; number < 60; number++) { await ask("PUT", `/api/queues/${vhost}/page-${number}`, { durable: false, auto_delete: false }); await ask("PUT", `/api/exchanges/${vhost}/page-${number}`, { type: "topic", durable: false }); }
  for (const name of [own("user"), LONG]) { await ask("PUT", `/api/users/${name}`, { password: "press", tags: "monitoring" }); await ask("PUT", `/api/permissions/${vhost}/${name}`, { configure: ".*", write: ".*", read: LONG }); await ask("PUT", `/api/topic-permissions/${vhost}/${name}`, { exchange: "press", write: ".*", read: ".*" }); await ask("PUT", `/api/user-limits/${name}/max-channels`, { value: 100 }); }
  for (const name of [own("vhost"), LONG]) { await ask("PUT", `/api/vhosts/${name}`, { description: "press " + LONG }); await ask("PUT", `/api/vhost-limits/${name}/max-queues`, { value: 1000 }); }
  for (const name of [own("policy"), LONG]) for (const kind of ["policies", "operator-policies"]) await ask("PUT", `/api/${kind}/${vhost}/${name}`, { pattern: "^press-none" + LONG, "apply-to": "queues", definition: { "message-ttl": 3_600_000 }, priority: 0 });
  await ask("PUT", `/api/parameters/shovel/${vhost}/${own("shovel")}`, { value: { "src-uri": "amqp://", "src-queue": "press-none-a", "dest-uri": "amqp://", "dest-queue": "press-none-b" } });
  await ask("PUT", `/api/parameters/federation-upstream/${vhost}/${own("upstream")}`, { value: { uri: "amqp://press:press@127.0.0.1:1/%2F" } });
  await ask("PUT", `/api/policies/${vhost}/press-federation`, { pattern: "^press-none-federated$", "apply-to": "exchanges", definition: { "federation-upstream-set": "all" }, priority: 1 });
  await ask("PUT", `/api/exchanges/${vhost}/press-none-federated`, { type: "topic", durable: true });
  const connection = (await ask("GET", "/api/connections")).find((one) => /press/.test(one.user_provided_name || ""));
  if (!connection) throw new Error("no connection of this test is open");
  const names = { queue: own("queue"), stream: own("stream"), exchange: own("exchange") };
  return { own, way: (page) => ({ queue: `queue/%2F/${names.queue}`, stream: `queue/%2F/${names.stream}`, exchange: `exchange/%2F/${names.exchange}`, connection: `connection/${encodeURIComponent(connection.name)}` })[page] || page };
}

let serial = 0;
// What a field gets that is empty: by its label. A field that has a value gets the same one again.
function valueOf(label, own, scope) {
  const rules = [
    [/^name or path$/i, "$"], [/^name/i, own(`new-${++serial}`)], [/^around/i, ""], [/^filter/i, ""], [/password/i, "press"], [/^(vhost|virtual host)/i, "/"], [/^user/i, own("user")], [/^(source|destination|to) exchange|alternate/i, own("other")],
    [/exchange/i, /route|exchange|permission/i.test(scope) ? own("other") : ""], [/queue|destination|^to$/i, own("target")], [/json/i, "{}"], [/offset/i, "0"], [/limit|value$/i, /value/i.test(label) ? "1000" : "max-connections"], [/uri/i, "amqp://press:press@127.0.0.1:1/%2F"], [/pattern/i, "^press-none"]];
  return (rules.find(([shape]) => shape.test(label)) || [null, "press"])[1];
}

class Presser {
  constructor(page, width, thing) { Object.assign(this, { page, width, thing, openers: new Map() }); }
  key(id) { return `${this.width} ${id}`; }
  is(id) { return used.has(this.key(id)); }

  async controls() { return this.page.evaluate(() => window.recorder.list()); }
  async settle(ms = 120) { await this.page.waitForTimeout(ms); }

  async go(way) {
    await this.page.evaluate((to) => { location.hash = to; }, "/" + way);
    await this.page.waitForFunction(() => document.querySelector("main h1") && !document.querySelector("main [aria-busy=true]"), null, { timeout: 8000 }).catch(() => fail(`${this.width} ${way}: it is busy for 8 s`));
    await this.settle(250);
  }

  async use(one) {
    const handle = (await this.page.evaluateHandle((id) => window.recorder.element(id), one.id)).asElement();
    if (!handle) return false;
    const wait = { timeout: 3000 };
    try {
      if (one.kind === "file") await handle.setInputFiles({ name: "press.json", mimeType: "application/json", buffer: Buffer.from('{"queues": []}') });
      else if (one.kind === "select") {
        const options = await handle.$$eval("option", (all) => all.map((each) => each.value)), before = await handle.evaluate((each) => each.value);
        const others = options.filter((each) => each !== before);
        if (others.length) { await handle.selectOption(others[0], wait); await this.settle(60); await handle.selectOption(before, wait); } else used.add(this.key(one.id));
      } else if (one.kind === "check") { await handle.click(wait); if (!/mark message|persistent/i.test(one.label)) await handle.click(wait).catch(() => {}); }
      else if (one.kind === "field") {
        const value = (await handle.inputValue()) || (one.word ?? valueOf(one.label, this.thing.own, one.scope));
        if (value === (await handle.inputValue())) await handle.fill(value + " ", wait).catch(() => handle.fill(value, wait));
        await handle.fill(value, wait);
      } else await handle.click(wait);
      used.add(this.key(one.id));
      return true;
    } catch (error) {
      if (!this.tried.has(one.id)) { this.tried.add(one.id); return true; } // a poll may have drawn it anew: once more
      fail(`${this.width} ${one.id}: ${String(error.message).split("\n")[0]}`);
      used.add(this.key(one.id));
      return false;
    }
  }

  async look(where) {
    const wide = await this.page.evaluate(() => window.recorder.sideways());
    if (wide) fail(`${this.width} ${where}: it scrolls sideways: ${wide}`);
    const trouble = await this.page.evaluate(() => document.querySelector("main .trouble, dialog .trouble")?.textContent || "");
    return trouble;
  }

  // One window, opened by `opener`: each round fills its fields and presses one button that was not pressed; the one that acts comes last.
  async dialog(opener) {
    for (let round = 0; round < 12; round++) {
      let all = (await this.controls()).filter((one) => one.dialog);
      if (!all.length) return;
      const scope = all[0].scope;
      for (const one of all.filter((each) => ["select", "check", "field", "file"].includes(each.kind))) if (one.kind !== "check" || !this.is(one.id)) await this.use(one);
      await this.settle(60);
      all = (await this.controls()).filter((one) => one.dialog);
      for (const one of all.filter((each) => !this.is(each.id) && each.kind !== "button")) await this.use(one); // fields that a choice has brought
      const buttons = all.filter((one) => one.kind === "button" && !this.is(one.id)), rank = (one) => (one.acts ? 3 : /^(Cancel|Close)$/.test(one.label) ? 2 : 1);
      buttons.sort((a, b) => rank(a) - rank(b));
      const next = buttons[0];
      if (!next) break;
      await this.use(next);
      await this.page.waitForFunction(() => !document.querySelector("dialog[open]") || document.querySelector("dialog .trouble"), null, { timeout: next.acts ? 8000 : 300 }).catch(() => {});
      const trouble = await this.look(scope);
      if (next.acts && trouble) { fail(`${this.width} ${next.id}: ${trouble.slice(0, 200)}`); break; }
      if (await this.page.evaluate(() => !document.querySelector("dialog[open]"))) {
        const rest = [...seen.values()].some((one) => one.width === this.width && one.scope === scope && !this.is(one.id));
        if (!rest || next.acts) return;
        await this.use(opener);
        await this.page.waitForSelector("dialog[open]", { timeout: 3000 }).catch(() => fail(`${this.width} ${opener.id}: opens once, and not again`));
      }
    }
    await this.page.keyboard.press("Escape");
    await this.settle();
  }

  async crawl(page) {
    const way = this.thing.way(page), tabs = new Set();
    this.tried = new Set();
    await this.go(way);
    const home = await this.page.evaluate(() => location.hash.split("?")[0]);
    for (let step = 0; step < PRESSES_MAX; step++) {
      const all = (await this.controls()).filter((one) => !one.dialog && one.where === "main");
      const rank = (one) => ({ select: 0, field: 1, check: 1 }[one.kind] ?? (one.danger ? (one.row ? 5 : 9) : one.acts ? 3 : 2)) + (/^(Delete|Close|Cancel all)$/.test(one.label) && !one.row ? 10 : 0);
      const open = all.filter((one) => !this.is(one.id) && one.kind !== "tab" && !(one.danger && one.row && !one.ours)).sort((a, b) => rank(a) - rank(b));
      // what ends the page's own thing waits until each part of the page was seen
      const tab = all.find((one) => one.kind === "tab" && !tabs.has(one.id));
      const next = open.length && !(rank(open[0]) >= 9 && tab) ? open[0] : tab;
      if (!next) break;
      if (next.kind === "tab") tabs.add(next.id);
      await this.use(next);
      await this.settle();
      this.ends = next.danger && !next.row; // the page's own thing ends: a poll under way is answered with 404
      if (await this.page.evaluate(() => Boolean(document.querySelector("dialog[open]")))) await this.dialog(next);
      const away = (await this.page.evaluate(() => location.hash.split("?")[0])) !== home;
      if (this.ends && away) { await this.settle(300); this.ends = false; return; }
      this.ends = false;
      const trouble = await this.look(page);
      if (trouble) { fail(`${this.width} ${next.id}: ${trouble.slice(0, 200)}`); await this.go("overview"); await this.go(way); continue; }
      if (away) await this.go(way);
    }
  }

  async top() {
    this.tried = new Set();
    await this.go("overview");
    for (let step = 0; step < PRESSES_MAX; step++) {
      const next = (await this.controls()).filter((one) => one.where !== "main" && !one.dialog && !this.is(one.id) && one.label !== "Sign out")[0];
      if (!next) break;
      await this.use(next);
      await this.settle(next.where === "menu" ? 300 : 120);
      if (await this.page.evaluate(() => Boolean(document.querySelector("dialog[open]")))) await this.dialog(next);
      await this.look(next.id);
    }
  }
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
for (const width of WIDTHS) {
  const began = Date.now(), thing = await prepare(width);
  const context = await browser.newContext({ viewport: { width, height: 900 }, permissions: ["clipboard-read", "clipboard-write"] });
  const page = await context.newPage();
  page.setDefaultTimeout(8000);
  await page.exposeBinding("noteSeen", (_, one) => { const key = `${width} ${one.id}`; if (!seen.has(key)) seen.set(key, { ...one, width }); });
  await page.exposeBinding("noteUsed", (_, id) => { used.add(`${width} ${id}`); });
  await page.addInitScript(recorder);
  page.on("pageerror", (error) => fail(`${width}: ${error}`));
  page.on("request", (one) => { if (/undefined|\[object|NaN/.test(decodeURIComponent(one.url()))) fail(`${width} asks for ${one.url()}`); });
  const presser = new Presser(page, width, thing);
  let expected = true; // the question whether there is a session is answered with 401
  page.on("response", (one) => { if (one.status() >= 400 && !expected && !(one.status() === 404 && presser.ends)) fail(`${width} ${one.request().method()} ${one.url()} is ${one.status()} on ${page.url().split("#")[1]}`); });
  await page.goto(CONSOLE + "/console/");
  await page.fill("input[autocomplete=username]", "guest");
  await page.fill("input[type=password]", "guest");
  await page.click("button.main");
  await page.waitForSelector(".tiles");
  expected = false;
  for (const way of process.env.ONLY ? process.env.ONLY.split(",") : PAGES) {
    await presser.crawl(way).catch((error) => fail(`${width} ${way}: ${String(error.message).split("\n")[0]}`));
    await presser.look(way);
  }
  for (const way of [`queue/%2F/${LONG}`, `exchange/%2F/${LONG}`]) { await presser.go(way); await presser.look(way.slice(0, 12)); }
  if (!process.env.ONLY) await presser.top();
  expected = true;
  await page.click("button:has-text('Sign out')");
  await page.waitForSelector("input[type=password]");
  await context.close();
  console.log(`      ${[...seen.values()].filter((one) => one.width === width).length} controls at ${width} px in ${Math.round((Date.now() - began) / 1000)} s`);
}
await browser.close();
for (const [key, one] of seen) if (!used.has(key) && !process.env.ONLY && !EXEMPT.some(([shape]) => shape.test(one.id))) fail(`${key} was never pressed`);
if (seen.size < (process.env.ONLY ? 10 : 300)) fail(`only ${seen.size} controls were seen`);
console.log(`${seen.size} controls, ${failures.length} failures`);
process.exit(failures.length ? 1 : 0);
