// The inventory of buttons: each button that a page shows and that can be pressed is pressed, at each width; one that never was is named.
// A button is known by its page (with its part), its window, and its label; numbers don't tell buttons apart.

// runs in the page, before its own scripts
function watch() {
  const label = (one) => (one.getAttribute("aria-label") || one.textContent || one.closest("label")?.textContent || one.type).replace(/\d+/g, "#").replace(/[↓↑]/g, "").trim().slice(0, 60);
  // the page that is shown, not the one that the address names: that one may be on its way
  const pageOf = () => { const main = document.querySelector("main"), tab = main?.dataset.page === "admin" && main.querySelector("[role=tab][aria-selected=true]"); return (main?.dataset.page || "login") + (tab ? " " + tab.textContent : ""); };
  const keyOf = (one) => {
    const dialog = one.closest("dialog"), frame = one.closest("header.top, nav.side, .login");
    const card = one.closest("section.card")?.querySelector("h2")?.textContent.replace(/\d+/g, "#");
    if (dialog?.getAttribute("aria-label") === "Keyboard") return `frame | Keyboard | ${label(one)}`;
    return dialog ? `${pageOf()} | ${dialog.getAttribute("aria-label").split(" ").slice(0, 2).join(" ")} | ${label(one)}` : frame ? `frame | ${label(one)}` : `${pageOf()} |${card ? ` [${card}]` : ""} ${label(one)}`;
  };
  const WHICH = "button, a.button, input[type=checkbox]";
  const usable = () => [...document.querySelectorAll(WHICH)].filter((one) => !one.disabled && one.getClientRects().length && (!document.querySelector("dialog[open]") || one.closest("dialog")));
  window.pressable = () => usable().map(keyOf);
  window.pressableOf = (key) => usable().find((one) => keyOf(one) === key);
  let due = 0;
  const look = () => { clearTimeout(due); due = setTimeout(() => { if (window.sawButtons) window.sawButtons(usable().map(keyOf), [...document.querySelectorAll(".command code")].map((one) => one.textContent)); }, 60); };
  addEventListener("DOMContentLoaded", () => new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["disabled"] }));
  addEventListener("click", (event) => { const one = event.target.closest && event.target.closest(WHICH); if (one && window.pressedButton) window.pressedButton(keyOf(one)); }, true);
}

export function inventory() {
  const seen = new Map(), pressed = new Map();
  let width = 0;
  const note = (map, key) => { if (!map.has(width)) map.set(width, new Set()); map.get(width).add(key); };
  return {
    at(size) { width = size; },
    async follow(context) {
      await context.exposeFunction("sawButtons", (keys, lines) => { keys.forEach((key) => note(seen, key)); lines.forEach((line) => this.commands.add(line)); });
      await context.exposeFunction("pressedButton", (key) => note(pressed, key));
      await context.addInitScript(watch);
    },
    // what the sweep pressed, whatever scenes did: they open a window and press its main button alone
    swept: new Set(),
    commands: new Set(),
    was(key) { return this.swept.has(`${width} ${key}`); },
    noted: (key) => pressed.get(width)?.has(key),
    tries: new Map(),
    // a button that a poll drew anew while it was pressed is pressed once more
    tried(key) {
      const all = `${width} ${key}`, count = (this.tries.get(all) || 0) + 1;
      this.tries.set(all, count);
      if (this.noted(key) || count >= 3) this.swept.add(all);
    },
    count: () => [...seen].map(([size, keys]) => `${size} px: ${keys.size} buttons`).join(", "),
    missing: () => [...seen].flatMap(([size, keys]) => [...keys].filter((key) => !pressed.get(size)?.has(key)).map((key) => `${size} px: ${key}`)),
  };
}

// The window that stands open: all that can be pressed in it, its main button last, with something in each field that needs it.
async function window_(page, buttons, avoid) {
  for (let round = 0; round < 12; round++) {
    if (!(await page.$("dialog[open]"))) return;
    const keys = [...new Set(await page.evaluate(() => window.pressable()))].filter((key) => !buttons.was(key) && !avoid.some((one) => one.test(key)));
    const closing = (key) => /\| (Cancel|Close the window)$/.test(key), submit = await page.evaluate(() => { const one = document.querySelector("dialog[open] form button:not([type=button])"); return one ? one.textContent.trim() : ""; });
    const order = (key) => (key.endsWith("| " + submit) ? 2 : closing(key) ? 1 : 0);
    const key = keys.sort((a, b) => order(a) - order(b))[0];
    if (key === undefined) { await page.keyboard.press("Escape"); return; }
    if (key.endsWith("| " + submit)) await fill(page);
    await press(page, buttons, key);
  }
  await page.keyboard.press("Escape");
}

async function fill(page) {
  const word = await page.$eval("dialog[open]", (one) => [...one.querySelectorAll("form > label > b")].map((b) => b.textContent)[0] || "");
  for (const input of await page.$$("dialog[open] input:not([type=checkbox]):not([type=file])")) {
    const [value, needed, labelled, type] = await input.evaluate((one) => [one.value, one.required, !!one.closest("label")?.querySelector("b"), one.type]);
    if (word && labelled) await input.fill(word);
    else if (needed && !value) await input.fill(type === "number" ? "5" : "pressed");
  }
}

async function press(page, buttons, key) {
  const handle = await page.evaluateHandle((wanted) => window.pressableOf(wanted), key), one = handle.asElement();
  if (one) {
    await one.click({ timeout: 2000, force: true }).catch(() => {});
    await page.waitForTimeout(120);
    if (!buttons.noted(key)) { await one.evaluate((each) => each.click()).catch(() => {}); await page.waitForTimeout(60); } // a notice was over it
  }
  buttons.tried(key);
}

// Presses what was not pressed yet on a page, and what that brings. avoid: patterns of keys that scenes of their own press; restock: makes
// messages, which windows move and remove. A page stays as its buttons made it; a button that leads away ends a pass, so there are several.
export async function sweep(page, buttons, way, avoid, restock) {
  const todo = (keys) => keys.find((one) => !buttons.was(one) && !avoid.some((pattern) => pattern.test(one)));
  const shown = () => page.evaluate(() => window.pressable()), name = way.split(/[/?]/)[0];
  const settle = async () => { await page.waitForFunction((wanted) => document.querySelector("main")?.dataset.page === wanted && !document.querySelector("main [aria-busy=true]"), name, { timeout: 4000 }).catch(() => {}); await page.waitForTimeout(150); };
  // What a page needs before some of its buttons can be pressed: a file, a field, and, pass by pass, a marked message or a condition.
  const home = async (pass = 0) => {
    await page.evaluate((to) => { location.hash = to; }, "#/" + way);
    await settle();
    await page.waitForTimeout(250);
    const file = await page.$("main input[type=file]");
    if (file) await file.setInputFiles({ name: "none.json", mimeType: "application/json", buffer: Buffer.from('{"queues": []}') });
    for (const input of await page.$$("main form input[required]")) if (!(await input.inputValue())) await input.fill("orders");
    if (name === "queue" && pass % 3 === 1) await page.click("main article input[type=checkbox]", { timeout: 1500 }).catch(() => {});
    if (name === "queue" && pass % 3 === 2) await page.click("main button:text-is('Add a condition')", { timeout: 1500 }).catch(() => {});
    await page.waitForTimeout(150);
  };
  for (let pass = 0; pass < 6; pass++) {
    await home(pass);
    let pressed = 0;
    for (let round = 0; round < 40; round++) {
      const key = todo(await shown());
      if (key === undefined) break;
      pressed++;
      await press(page, buttons, key);
      // a window has several ends: it is opened once for each
      for (let end = 0; end < 6 && (await page.$("dialog[open]")); end++) {
        await window_(page, buttons, avoid);
        await page.waitForTimeout(60);
        await restock();
        if ((await page.$eval("main", (one) => one.dataset.page).catch(() => "")) !== name) await home(pass);
        await press(page, buttons, key);
        if (!todo(await page.evaluate(() => (document.querySelector("dialog[open]") ? window.pressable() : [])))) { await page.keyboard.press("Escape"); break; }
      }
      if ((await page.$eval("main", (one) => one.dataset.page).catch(() => "")) !== name) await home(pass);
    }
    if (!pressed && (name !== "queue" || pass >= 2)) return;
  }
}

// Runs the commands that pages showed, one of each verb, as a shell reads them: those that only look; of the others the verb is asked for its
// help, and tests/admin/test_console_commands.py runs all. Returns lines of those that fail. folder: to run in; bin: of the command `flintmq`.
export async function commands(shown, folder, bin) {
  const { spawnSync } = await import("node:child_process"), wrong = [], verbs = new Map();
  for (const line of shown) {
    if (!/ -u '?guest'? /.test(line) || / ''( |$)/.test(line)) continue; // of another user, or of a form that is empty
    const verb = line.startsWith("curl") ? line.replace(/[?#].*/, "").split("/").slice(0, 6).join("/") : line.replace(/^.* -u guest (-p ('[^']*'|\S+) )?/, "").split(" ")[0];
    if (!line.startsWith("curl") || !/ -X /.test(line)) verbs.set(verb, line);
  }
  for (const [verb, line] of verbs) {
    const curl = line.startsWith("curl"), looks = /^(list_|shovel_status|federation_status)/.test(verb);
    const text = curl ? line.replace("curl -u 'guest'", "curl -s -o /dev/null -w '%{http_code}' --max-time 2 -u 'guest:guest'") : looks ? line : `flintmq ctl ${verb} --help`;
    const done = spawnSync("bash", ["-c", text], { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], env: { PATH: bin + ":" + process.env.PATH, LC_ALL: "C.UTF-8", FLINTMQ_PASSWORD: "guest" } });
    if (curl ? !["200", "404"].includes(done.stdout) : done.status !== 0) wrong.push(`${line}: ${done.status} ${done.stdout.slice(-100)} ${done.stderr.slice(-200)}`);
  }
  return { wrong, count: verbs.size };
}
