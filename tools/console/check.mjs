// What the console must hold in a real browser; tools/console/run.py starts it. Each check prints a line; the last line counts them.
import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { scenes, ask } from "./forms.mjs";
import { commands, inventory, sweep } from "./press.mjs";

const require = createRequire(process.env.MODULES + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const { CONSOLE, HOSTILE, SHOTS } = process.env;
mkdirSync(SHOTS, { recursive: true });

let passed = 0, failed = 0;
async function check(what, test) {
  try { await test(); passed++; console.log("ok    " + what); }
  catch (error) { failed++; console.log("FAIL  " + what + "\n      " + String(error.message).split("\n").slice(0, 40).join("\n      ")); }
}
const must = (holds, why) => { if (!holds) throw new Error(why); };

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
const troubles = [], buttons = inventory();
const [WIDE, NARROW] = process.env.WIDTHS.split(",").map(Number);
async function open(user = "guest", password = "guest", colorScheme = "light", width = WIDE) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  buttons.at(width);
  await buttons.follow(context);
  const page = await context.newPage();
  page.on("console", (one) => { if (one.type() === "error" && !/status of (4|5)/.test(one.text())) troubles.push(one.text()); });
  page.on("pageerror", (error) => troubles.push(String(error)));
  const strangers = [];
  page.on("request", (one) => { if (!one.url().startsWith(CONSOLE) && !one.url().startsWith("data:")) strangers.push(one.url()); });
  page.strangers = strangers;
  page.on("request", (one) => { if (/\/(undefined|null)\b/.test(one.url())) troubles.push("a request to " + one.url()); });
  await page.goto(CONSOLE + "/console/");
  if (user) await signIn(page, user, password);
  return page;
}
async function signIn(page, user, password) {
  await page.fill("input[autocomplete=username]", user);
  await page.fill("input[type=password]", password);
  await page.click("button.main");
}
async function go(page, way, title) {
  await page.evaluate((to) => { location.hash = to; }, way);
  await page.waitForFunction((text) => document.querySelector("main h1")?.textContent.includes(text), title, { timeout: 8000 });
  await page.waitForTimeout(700);
}
async function accessible(page) {
  await page.evaluate(() => { window.module = undefined; });
  const client = await page.context().newCDPSession(page); // the page's own policy would not run a script of ours
  await client.send("Runtime.evaluate", { expression: axe });
  const { result } = await client.send("Runtime.evaluate", { expression: "axe.run(document,{resultTypes:['violations']}).then(r=>JSON.stringify(r.violations.filter(v=>['serious','critical'].includes(v.impact)||v.id==='region').map(v=>v.id+': '+v.nodes.slice(0,3).map(n=>n.html.slice(0,140)+' '+(n.any[0]?.message||'')).join(' | '))))", awaitPromise: true });
  const found = JSON.parse(result.value);
  must(!found.length, found.join("\n"));
}

await check("a wrong password is refused, in words", async () => {
  const page = await open("guest", "wrong");
  await page.waitForSelector(".trouble");
  must((await page.textContent(".trouble")).includes("password"), await page.textContent(".trouble"));
  await accessible(page);
  await page.screenshot({ path: SHOTS + "/console-login.png" });
  await page.context().close();
});

const page = await open();
await page.waitForSelector(".tiles");
await page.waitForTimeout(Number(process.env.SETTLE || 14000)); // charts need some samples

const PAGES = [["overview", "Overview"], ["diagnosis", "Diagnosis"], ["queues", "Queues"], ["streams", "Streams"], ["exchanges", "Exchanges"], ["exchange/%2F/orders", "orders"], ["topology", "Topology"], ["route", "unroutable"], ["schedules", "Scheduled"], ["shovels", "Shovels"], ["federation", "Federation"], ["connections", "Connections"], ["channels", "Channels"], ["pipelines", "Spark"], ["transactions", "Transactions"], ["admin", "Admin"], ["log", "Log"], ["api", "API"]];
for (const [way, title] of PAGES) {
  await check(`page ${way} opens and is accessible`, async () => {
    await go(page, "/" + way, title);
    await accessible(page);
    must(!(await page.$("main .trouble")), await page.$eval("main", (one) => one.textContent.slice(0, 300)));
    await page.screenshot({ path: `${SHOTS}/console-${way.split("/")[0]}.png`, fullPage: false });
  });
}

await check("commands hold no control characters, and the shell reads them as they were", async () => {
  const names = ["plain", "it's", "a\u0008\u0008'; touch /tmp/x #", "line\nend", "\u001b[31mred\u009b", "back\\slash\t"];
  const lines = await page.evaluate(async (all) => { const { quoted } = await import("/console/commands.js"); return all.map(quoted); }, names);
  must(lines.every((one) => !/[\u0000-\u001f\u007f-\u009f]/.test(one)), JSON.stringify(lines));
  const { execFileSync } = await import("node:child_process");
  for (const [at, line] of lines.entries()) {
    const read = execFileSync("bash", ["-c", `printf '%s' ${line}`], { env: { ...process.env, LC_ALL: "C.UTF-8" } }).toString();
    must(read === names[at], `${JSON.stringify(names[at])} became ${JSON.stringify(read)} by ${line}`);
  }
});

await check("a queue is paused and resumed", async () => {
  await go(page, "/queue/%2F/billing", "billing");
  await page.click("button:has-text('Pause')");
  await page.waitForSelector(".diag:has-text('Consumers are given nothing')");
  await go(page, "/queues", "Queues");
  await page.waitForSelector("tr:has-text('billing') .badge:has-text('paused')");
  await go(page, "/queue/%2F/billing", "billing");
  await page.click("button:has-text('Resume')");
  await page.waitForFunction(() => !document.querySelector(".diag"));
});

await check("scheduled messages are listed and cancelled", async () => {
  await go(page, "/schedules", "Scheduled");
  await page.waitForSelector("td:has-text('emails')");
  const before = await page.$$eval("tbody tr", (all) => all.length);
  must(before >= 3, `${before} rows`);
  must((await page.textContent("main")).includes(HOSTILE.slice(0, 60)), "the hostile key is shown as it is");
  await page.click("tbody tr:first-child button:has-text('Cancel')");
  await page.click("dialog button.danger");
  await page.waitForFunction((count) => document.querySelectorAll("tbody tr").length === count - 1, before);
});

await check("shovels: made, seen at work, deleted", async () => {
  await go(page, "/shovels", "Shovels");
  await page.click("button:has-text('New shovel')");
  await page.fill("dialog label:has-text('Name') input", HOSTILE.slice(0, 60));
  await page.fill("dialog label:has-text('Source queue') input", "lost.letters");
  await page.fill("dialog label:has-text('Destination queue') input", "found.letters");
  await page.click("dialog button.main");
  await page.waitForSelector("tbody tr .badge.good:has-text('running')", { timeout: 20000 });
  must((await page.textContent("tbody")).includes(HOSTILE.slice(0, 60)), "its name");
  await accessible(page);
  await page.click("tbody button.danger");
  await page.fill("dialog input", HOSTILE.slice(0, 60));
  await page.click("dialog button.danger");
  await page.waitForSelector("text=There are no shovels.");
});

await check("upstreams show no password", async () => {
  await go(page, "/federation", "Federation");
  await page.click("button:has-text('New upstream')");
  await page.fill("dialog label:has-text('Name') input", "north");
  await page.fill("dialog label:has-text('URI') input", "amqp://u:very-secret@127.0.0.1:1/%2F");
  await page.click("dialog button.main");
  await page.waitForSelector("td:has-text('north')");
  must((await page.textContent("main")).includes("amqp://u:***@127.0.0.1:1"), "masked");
  must(!(await page.content()).includes("very-secret"), "the password is shown");
  await accessible(page);
});

await check("a page that is none says so", async () => {
  for (const way of ["nothing", "messages", "constructor", "..%2Fapi"]) await go(page, "/" + way, "Not found");
});

await check("the list of queues filters and sorts", async () => {
  await go(page, "/queues", "Queues");
  await page.keyboard.press("/");
  await page.keyboard.type("orders");
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 2);
  await page.fill("main input[type=search]", "");
  await page.click("th button:has-text('Ready')");
  await page.waitForSelector("th[aria-sort=descending]");
});

await check("a queue shows its messages without taking them", async () => {
  await go(page, "/queue/%2F/orders.us", "orders.us");
  await page.waitForSelector("article.message");
  await accessible(page);
  await page.screenshot({ path: `${SHOTS}/console-queue.png` });
  const tile = await page.textContent(".tile .value");
  must(Number(tile) === 133, "ready: " + tile);
});

await check("messages are found by a JSON path, and moved", async () => {
  await page.click("text=Add a condition");
  await page.selectOption("select[aria-label=Where]", "json");
  await page.fill("input[aria-label='Name or path']", "$.lines[0].sku");
  await page.selectOption("select[aria-label=How]", "eq");
  await page.fill("input[aria-label=Value]", "A3");
  await page.click("button:has-text('Search')");
  await page.waitForFunction(() => { const all = [...document.querySelectorAll("article.message pre")]; return all.length > 3 && all.every((one) => one.textContent.includes('"A3"')); });
  await page.screenshot({ path: `${SHOTS}/console-search.png` });
  await page.click("button:has-text('Move all that match')");
  await page.fill("dialog label:has(span:text-is('Queue')) input", "backlog");
  await accessible(page);
  await page.click("dialog button.main");
  await page.waitForSelector(".toast:has-text('moved')");
});

await check("a message is edited and sent anew", async () => {
  await go(page, "/overview", "Overview");
  await go(page, "/queue/%2F/orders.us", "orders.us");
  await page.waitForSelector("article.message");
  await page.click("article.message button:has-text('Edit')");
  await page.fill("dialog label:has(span:text-is('Queue')) input", "backlog");
  await page.fill("dialog label:has(span:text-is('Body')) textarea", '{"edited": true}');
  await page.screenshot({ path: `${SHOTS}/console-edit.png` });
  await accessible(page);
  await page.click("dialog button.main");
  await page.waitForSelector(".toast:has-text('Sent anew')");
  const seen = await page.evaluate(async (auth) => (await (await fetch("/api/v1/queues/%2F/backlog/search", { method: "POST", headers: { authorization: auth, "content-type": "application/json" }, body: JSON.stringify({ filter: [{ in: "json", path: "$.edited", value: true }] }) })).json()).messages.length, "Basic " + btoa("guest:guest"));
  must(seen === 1, "found " + seen);
});

await check("hostile names, headers and bodies are text", async () => {
  await go(page, "/queues", "Queues");
  await page.waitForSelector("td a:has-text('onerror')");
  await page.click("td a:has-text('onerror')");
  await page.waitForSelector("article.message");
  await page.waitForTimeout(800);
  must((await page.textContent("article.message pre")) === HOSTILE, "the body is not shown as it is");
  must((await page.textContent("main h1")).startsWith("<img src=x"), "the name is not shown as it is");
  for (const tab of ["Consumers", "Bindings", "Settings"]) { await page.click(`[role=tab]:has-text('${tab}')`); await page.waitForTimeout(200); }
  await go(page, "/topology", "Topology");
  await go(page, "/log", "Log");
  must(!(await page.evaluate(() => window.hacked)), "a script of a message ran");
  must((await page.evaluate(() => document.querySelectorAll("main img, main script").length)) === 0, "markup of a message");
});

await check("who hoards is named", async () => {
  await go(page, "/queue/%2F/emails", "emails");
  await page.click("[role=tab]:has-text('Consumers')");
  await page.waitForSelector("text=greedy-worker");
  await page.waitForSelector("text=hoarding");
  await page.screenshot({ path: `${SHOTS}/console-consumers.png` });
});

await check("why a message goes nowhere is said", async () => {
  await go(page, "/route", "unroutable");
  await page.fill("label:has-text('Exchange') input", "orders");
  await page.fill("label:has-text('Routing key') input", "asia.order.new");
  await page.click("button:has-text('Test')");
  await page.waitForSelector("h2:has-text('It goes nowhere')");
  await page.waitForSelector("td:has-text('word 1 of the key')");
  await page.screenshot({ path: `${SHOTS}/console-route.png` });
  await accessible(page);
});

await check("a purge asks for the name, and Escape leaves", async () => {
  await go(page, "/queue/%2F/backlog", "backlog");
  await page.click("button:has-text('Purge')");
  must(await page.isDisabled("dialog button.danger"), "it can be purged at once");
  await accessible(page);
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog", { state: "detached" });
  await page.click("button:has-text('Purge')");
  await page.fill("dialog input", "backlog");
  await page.click("dialog button.danger");
  await page.waitForSelector(".toast:has-text('empty')");
});

await check("keys go places, and the lock holds", async () => {
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press("g"); await page.keyboard.press("q");
  await page.waitForFunction(() => document.querySelector("main h1")?.textContent === "Queues");
  await page.keyboard.press("Shift+L");
  must(await page.isDisabled("button:has-text('New queue')"), "not locked");
  await page.keyboard.press("Shift+L");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog:has-text('Keyboard')");
  await page.keyboard.press("Escape");
});

await check("dark mode is accessible", async () => {
  await page.click("button:has-text('Dark')");
  for (const [way, title] of [["overview", "Overview"], ["queue/%2F/orders.us", "orders.us"], ["topology", "Topology"], ["log", "Log"]]) {
    await go(page, "/" + way, title);
    await accessible(page);
    if (way === "overview") await page.screenshot({ path: `${SHOTS}/console-dark.png` });
  }
});

await check("a user who may only look changes nothing", async () => {
  await page.evaluate(async (auth) => {
    await fetch("/api/users/viewer", { method: "PUT", headers: { authorization: auth, "content-type": "application/json" }, body: JSON.stringify({ password: "viewer", tags: "monitoring" }) });
  }, "Basic " + btoa("guest:guest"));
  const other = await open("viewer", "viewer");
  await other.waitForSelector(".tiles");
  await go(other, "/queues", "Queues");
  must(await other.isDisabled("button:has-text('New queue')"), "it may declare");
  must((await other.textContent(".top")).includes("read-only"), "nothing says so");
  await other.context().close();
});

await check("a reload and a new tab need no password, no script reads the session, Sign out ends it everywhere", async () => {
  must((await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length)) === 0, "storage that a script reads");
  const cookies = await page.context().cookies();
  must(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", JSON.stringify(cookies.map(({ name, httpOnly, sameSite }) => ({ name, httpOnly, sameSite }))));
  await page.evaluate(() => { location.hash = "/queues?name=orders&sort=name&down=1"; });
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll("tbody tr").length === 2 && document.querySelector("th[aria-sort=descending]"));
  must((await page.inputValue("main input[type=search]")) === "orders", "the filter is gone");
  const tab = await page.context().newPage();
  await tab.goto(CONSOLE + "/console/");
  await tab.waitForSelector(".tiles");
  await tab.click("button:has-text('Sign out')");
  await tab.waitForSelector("input[type=password]");
  await page.waitForSelector("input[type=password]");
  must((await page.context().cookies()).length === 0, "the cookie stays");
  await tab.close();
});

const LOOKED = [...PAGES.map(([way]) => way), "queue/%2F/orders.us", "queue/%2F/" + "n".repeat(200), "queue/%2F/emails?tab=consumers", "queue/%2F/orders.us?tab=bindings", "queue/%2F/orders.us?tab=settings", "exchange/%2F/" + "n".repeat(200), ...["users", "permissions", "policies", "vhosts", "limits", "definitions"].map((part) => "admin?part=" + part)];
// Scenes press these at each width: elsewhere they would take the broker, or the load on it, away.
const SCENES = [/^frame \| Sign out$/, /^admin (Users|Virtual hosts|Permissions) \| Delete the \| Delete$/, /^connection \| Close the \| Close$/, /^queue \| (Delete|Purge) the \| (Delete|Purge)$/, /^exchange \| Delete the \| Delete$/, /^admin Users \| Edit user \| Save$/];

for (const width of [WIDE, NARROW]) {
  const at = await open("guest", "guest", "light", width);
  await at.waitForSelector(".tiles");
  await check(`${width}: nothing scrolls sideways`, async () => {
    const wide = [];
    for (const way of LOOKED) {
      await at.evaluate((to) => { location.hash = to; }, "/" + way);
      await at.waitForTimeout(500);
      const [scroll, client] = await at.evaluate(() => [document.scrollingElement.scrollWidth, document.scrollingElement.clientWidth]);
      const names = await at.evaluate(() => [...document.querySelectorAll("main tbody td:first-child")].map((one) => Math.round(one.getBoundingClientRect().width)));
      if (names.some((one) => one < 120)) wide.push(`${way.slice(0, 40)}: a name is ${Math.min(...names)} px wide`);
      if (scroll > client) wide.push(`${way.slice(0, 40)}: ${scroll} of ${client}`);
    }
    await at.goto(CONSOLE + "/console/#/overview");
    must(!wide.length, wide.join("\n"));
  });
  await check(`${width}: the way back and forward, and pages in haste, ask for nothing that is undefined`, async () => {
    await go(at, "/queues?name=o", "Queues");
    await at.click("th button:has-text('In')");
    await at.waitForSelector("th[aria-sort]:has-text('In')");
    for (const way of ["/queue/%2F/orders.us", "/exchange/%2F/orders", "/connections", "/queue/%2F/billing", "/admin", "/exchange/%2F/lost"]) await at.evaluate((to) => { location.hash = to; }, way);
    await go(at, "/exchange/%2F/orders", "orders");
    for (let step = 0; step < 7; step++) await at.goBack();
    await at.waitForFunction(() => document.querySelector("main input[type=search]")?.value === "o" && document.querySelector("th[aria-sort]"));
    await at.goBack();
    await at.waitForFunction(() => !document.querySelector("th[aria-sort]"));
    await at.goForward();
    await at.waitForSelector("th[aria-sort]:has-text('In')");
    must(!troubles.some((one) => one.startsWith("a request to")), troubles.join("\n"));
  });
  for (const scene of scenes({ page: at, go, check, must, base: CONSOLE, width })) {
    await scene();
    if (await at.$("dialog[open]")) await at.keyboard.press("Escape");
  }
  await check(`${width}: every button that no scene pressed is pressed`, async () => {
    for (let count = 0; count < 3; count++) await ask(CONSOLE, "/api/exchanges/%2F/amq.default/publish", "POST", { properties: { headers: { "x-delay": 3600000 } }, routing_key: "emails", payload: "later", payload_encoding: "string" });
    await ask(CONSOLE, "/api/policies/%2F/federated", "PUT", { pattern: "^lost.letters$", "apply-to": "queues", definition: { "federation-upstream-set": "all" } });
    const queue = `sweep${width}`, stock = `/api/v1/queues/%2F/${queue}/messages`;
    await ask(CONSOLE, `/api/queues/%2F/${queue}`, "PUT", { durable: true });
    const restock = async () => { const { messages_ready } = await ask(CONSOLE, `/api/v1/queues/%2F/${queue}`); for (let count = messages_ready; count < 25; count++) await ask(CONSOLE, stock, "POST", { body: `{"n": ${count}}` }); };
    await restock();
    await ask(CONSOLE, `/api/bindings/%2F/e/orders/q/${queue}`, "POST", { routing_key: "none.at.all", arguments: {} });
    const [{ name }] = (await ask(CONSOLE, "/api/connections")).filter((one) => !one.user_provided_name);
    for (const way of [...LOOKED.filter((one) => !one.includes("nnn")).map((one) => one.replace("orders.us", queue)), `connection/${encodeURIComponent(name)}`]) await sweep(at, buttons, way, SCENES, restock);
    if ((await at.textContent(".top")).includes("Unlock")) await at.click("button:has-text('Unlock changes')");
    await at.click("button:has-text('Sign out')");
    await at.waitForSelector("input[type=password]");
  });
  await at.context().close();
}
await check("each button of each page was pressed at each width", async () => {
  console.log("      " + buttons.count());
  must(!buttons.missing().length, buttons.missing().join("\n"));
});
await check("each command that a page showed is one, as a shell reads it", async () => {
  const { wrong, count } = await commands(buttons.commands, SHOTS, process.env.BIN);
  console.log(`      ${buttons.commands.size} lines, ${count} commands`);
  must(count > 25 && !wrong.length, wrong.join("\n"));
});
await check("a rate is unknown at the first look, one of a thing is one thing, and a new queue has an axis of a minute", async () => {
  const other = await open();
  await other.waitForSelector(".tiles");
  const words = await other.evaluate(async () => { const { rateOf, many } = await import("/console/ui.js"); return [rateOf(0, 1), rateOf(0, 2), rateOf(3, 1), many(1, "consumer"), many(2, "consumer"), many(0, "consumer")]; });
  await ask(CONSOLE, "/api/queues/%2F/new", "PUT", { durable: true });
  await other.evaluate(() => { window.firstRate = ""; new MutationObserver(() => { const one = document.querySelectorAll("main[data-page=queue] .tile .value")[2]; if (one && !window.firstRate) window.firstRate = one.textContent; }).observe(document, { subtree: true, childList: true }); location.hash = "/queue/%2F/new"; });
  await other.waitForFunction(() => window.firstRate);
  must((await other.evaluate(() => window.firstRate)) === "–", "the first rate shown");
  await other.waitForFunction(() => document.querySelectorAll("main .tile .value")[2]?.textContent === "0/s", undefined, { timeout: 8000 });
  const [[low, high], [first, last]] = await other.evaluate(async () => { const { minute } = await import("/console/ui.js"); return [minute(null, null), minute(1e9, 1e9)]; });
  must(Math.abs(high - Date.now() / 1000) < 60 && high - low === 60 && last - first === 60, "the axis of a queue without samples");
  must(JSON.stringify(words) === JSON.stringify(["–", "0/s", "3/s", "1 consumer", "2 consumers", "0 consumers"]), JSON.stringify(words));
  await other.context().close();
});
await check("no other site shows the console in a frame", async () => {
  const other = await (await browser.newContext()).newPage();
  await other.route("http://evil.example/**", (route) => route.fulfill({ contentType: "text/html", body: `<iframe src="${CONSOLE}/console/"></iframe>` }));
  await other.goto("http://evil.example/");
  await other.waitForTimeout(800);
  const frame = other.frames().find((one) => one !== other.mainFrame());
  const shown = frame ? await frame.evaluate(() => Boolean(document.querySelector("input[type=password]"))).catch(() => false) : false;
  must(!shown, "it is shown");
  await other.context().close();
});

await check("it opens in 300 ms, asks no other machine, and breaks none of its own rules", async () => {
  const times = [];
  for (let round = 0; round < 5; round++) {
    const context = await browser.newContext();
    const other = await context.newPage();
    const begin = Date.now();
    await other.goto(CONSOLE + "/console/", { waitUntil: "commit" });
    await other.waitForSelector("input[type=password]", { state: "visible" });
    times.push(Date.now() - begin);
    await context.close();
  }
  times.sort((a, b) => a - b);
  console.log("      opens in (ms): " + times.join(", "));
  must(times[0] < 300, "fastest of five: " + times[0] + " ms");
  must(!page.strangers.length, page.strangers.join(" "));
  must(!troubles.length, troubles.slice(0, 5).join("\n"));
});

await browser.close();
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
