// Scenes of the forms: what each makes is there afterwards, asked of the broker. Run at each width; names have the width.

export const AUTH = "Basic " + Buffer.from("guest:guest").toString("base64");

// The broker's own answer, past the console. null: there is none of this name.
export async function ask(base, path, method = "GET", body = undefined) {
  const response = await fetch(base + path, { method, headers: { authorization: AUTH, "content-type": "application/json", "x-flintmq-request": "1" }, body: body === undefined ? undefined : JSON.stringify(body) });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export function scenes({ page, go, check, must, base, width }) {
  const api = (path, method, body) => ask(base, path, method, body);
  const user = `u${width}`, vhost = `v${width}`;
  const field = (label) => `dialog label:has(span:text-is("${label}")) :is(input, textarea, select)`;
  const put = async (values) => { for (const [label, value] of Object.entries(values)) { const one = await page.$(field(label)); if (await one.evaluate((each) => each.tagName === "SELECT")) await one.selectOption(value); else await one.fill(value); } };
  const submit = async () => { await page.click("dialog form button:not([type=button])"); await page.waitForSelector("dialog", { state: "detached", timeout: 5000 }); };
  const part = (name) => go(page, `/admin?part=${name}`, "Admin");
  const create = async (button, values) => { await page.click(`main button:text-is("${button}")`); await put(values); await submit(); };
  const row = (text, button) => page.click(`main tr:has-text("${text}") button:text-is("${button}")`);
  const drop = async (text, word) => { await row(text, "Delete"); if (word) await page.fill("dialog input", word); await page.click("dialog button.danger"); await page.waitForSelector("dialog", { state: "detached" }); };
  const is = (one, other, thing) => must(JSON.stringify(one) === JSON.stringify(other), `${thing}: ${JSON.stringify(one)}, not ${JSON.stringify(other)}`);

  return [
    () => check(`${width}: a user is made once, edited with its password kept, and deleted`, async () => {
      await part("users");
      await create("New user", { Name: user, Password: "first", Tags: "management, monitoring" });
      const before = await api(`/api/users/${user}`);
      is(before.tags, ["management", "monitoring"], "tags");
      await page.click('main button:text-is("New user")');
      await put({ Name: user, Password: "other" });
      await page.waitForSelector("dialog .trouble:has-text('already')");
      must(await page.isDisabled("dialog form button:not([type=button])"), "it can be replaced");
      await page.keyboard.press("Escape");
      for (const end of ["Cancel", "✕"]) {
        await row(user, "Edit");
        await page.click('dialog button:text-is("Copy")');
        await page.click(`dialog button:text-is("${end}")`);
        await page.waitForSelector("dialog", { state: "detached" });
      }
      await row(user, "Edit");
      await put({ Tags: "administrator" });
      await submit();
      const after = await api(`/api/users/${user}`);
      is([after.tags, after.password_hash], [["administrator"], before.password_hash], "after the change of tags");
      await row(user, "Edit");
      await put({ Password: "second" });
      await submit();
      const changed = await api(`/api/users/${user}`);
      is(changed.tags, ["administrator"], "tags after the change of the password");
      must(changed.password_hash !== before.password_hash, "the password is the old one");
    }),
    () => check(`${width}: virtual hosts, permissions, topic permissions`, async () => {
      await part("vhosts");
      await create("New virtual host", { Name: vhost, Description: "of a test" });
      await row(vhost, "Edit");
      await put({ Description: "changed" });
      await submit();
      is((await api(`/api/vhosts/${vhost}`)).description, "changed", "description");
      await part("permissions");
      await create("New permission", { User: user, "Virtual host": vhost, Configure: "^c" });
      is((await api(`/api/permissions/${vhost}/${user}`)).configure, "^c", "configure");
      await create("New topic permission", { User: user, "Virtual host": vhost, Write: "^eu" });
      is((await api(`/api/topic-permissions/${vhost}/${user}`))[0].write, "^eu", "write");
      await page.click(`section:has(h2:text-is("Topic permissions")) tr:has-text("${user}") button:text-is("Delete")`);
      await page.click("dialog button.danger");
      await page.waitForSelector("dialog", { state: "detached" });
      must((await api(`/api/topic-permissions/${vhost}/${user}`)) === null, "the topic permission is still there");
      await page.click(`section:has(h2:text-is("Permissions")) tr:has-text("${user}") button:text-is("Delete")`);
      await page.click("dialog button.danger");
      await page.waitForSelector("dialog", { state: "detached" });
      must((await api(`/api/permissions/${vhost}/${user}`)) === null, "the permission is still there");
    }),
    () => check(`${width}: policies and operator policies, made, edited, deleted`, async () => {
      await part("policies");
      for (const [button, path] of [["New policy", "policies"], ["New operator policy", "operator-policies"]]) {
        await create(button, { Name: `p${width}`, "Virtual host": vhost, Pattern: "^none", "Definition (JSON)": '{"max-length": 7}' });
        is((await api(`/api/${path}/${vhost}/p${width}`)).definition, { "max-length": 7 }, path);
        const card = `section:has(button:text-is("${button}"))`;
        for (const end of ["Cancel", "✕"]) {
          await page.click(`${card} tr:has-text("p${width}") button:text-is("Edit")`);
          await page.click('dialog button:text-is("Copy")');
          await page.click(`dialog button:text-is("${end}")`);
          await page.waitForSelector("dialog", { state: "detached" });
        }
        await page.click(`${card} tr:has-text("p${width}") button:text-is("Edit")`);
        await put({ Priority: "3" });
        await submit();
        is((await api(`/api/${path}/${vhost}/p${width}`)).priority, 3, "priority");
        await page.click(`${card} tr:has-text("p${width}") button:text-is("Delete")`);
        await page.fill("dialog input", `p${width}`);
        await page.click("dialog button.danger");
        await page.waitForSelector("dialog", { state: "detached" });
        must((await api(`/api/${path}/${vhost}/p${width}`)) === null, "it is still there");
      }
    }),
    () => check(`${width}: limits of virtual hosts and of users`, async () => {
      await part("limits");
      await create("New limit of a virtual host", { "Virtual host": vhost, Limit: "max-queues", Value: "9" });
      is((await api(`/api/vhost-limits/${vhost}`))[0].value, { "max-queues": 9 }, "limits");
      await create("New limit of a user", { User: user, Limit: "max-channels", Value: "4" });
      is((await api(`/api/user-limits/${user}`))[0].value, { "max-channels": 4 }, "limits");
      await row(user, "Edit");
      await put({ Value: "5" });
      await submit();
      is((await api(`/api/user-limits/${user}`))[0].value, { "max-channels": 5 }, "limits");
      await drop(user);
      is(await api(`/api/user-limits/${user}`), [], "limits");
      await drop(vhost);
      is(await api(`/api/vhost-limits/${vhost}`), [], "limits");
    }),
    () => check(`${width}: definitions go out and come in`, async () => {
      await part("definitions");
      const [file] = await Promise.all([page.waitForEvent("download"), page.click('main button:text-is("Export")')]);
      const { readFileSync } = await import("node:fs"), value = JSON.parse(readFileSync(await file.path(), "utf8"));
      must(value.users.some((one) => one.name === user) && value.queues.some((one) => one.name === "billing"), "the file has not all");
      await page.setInputFiles("main input[type=file]", { name: "broken.json", mimeType: "application/json", buffer: Buffer.from("{") });
      await page.waitForSelector(".trouble:has-text('broken.json is no definitions file')");
      must(await page.isDisabled('main button:text-is("Import")'), "a broken file can be imported");
      const made = { queues: [{ vhost, name: "imported", durable: true, auto_delete: false, arguments: {} }], users: [] };
      await page.setInputFiles("main input[type=file]", { name: "made.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(made)) });
      for (const end of ["Cancel", "✕", "Import"]) {
        await page.click('main button:text-is("Import")');
        await page.click('dialog button:text-is("Copy")');
        await page.click(`dialog button:text-is("${end}")`);
        await page.waitForSelector("dialog", { state: "detached" });
      }
      await page.waitForSelector(".toast:has-text('Imported')");
      must((await api(`/api/queues/${vhost}/imported`)) !== null, "the queue is not there");
    }),
    () => check(`${width}: an exchange is bound to a queue and to an exchange, with arguments`, async () => {
      await go(page, "/exchanges", "Exchanges");
      await create("New exchange", { Name: `x${width}`, Type: "fanout" });
      await go(page, `/exchange/%2F/x${width}`, `x${width}`);
      await page.click('main button:text-is("Delete")');
      await page.fill("dialog input", `x${width}`);
      await page.click("dialog button.danger");
      await page.waitForFunction(() => document.querySelector("main h1")?.textContent === "Exchanges");
      must((await api(`/api/exchanges/%2F/x${width}`)) === null, "the exchange is still there");
      await go(page, "/exchange/%2F/audit", "audit");
      const bind = async (kind, to, given) => {
        await page.selectOption('main label:has(span:text-is("To")) select', kind);
        await page.fill(`main form.form label:has(span:text-is("${kind === "q" ? "Queue" : "Exchange"}")) input`, to);
        await page.fill('main form.form label:has(span:text-is("Arguments (JSON)")) input', given);
        await page.click('main button:text-is("Bind")');
        await page.waitForSelector(`tr:has-text("${to}") >> text=${width}`);
      };
      await bind("q", "backlog", `{"x-match": "all", "w": ${width}}`);
      await bind("e", "lost", `{"x-match": "any", "w": ${width}}`);
      const bindings = (await api("/api/exchanges/%2F/audit/bindings/source")).filter((one) => one.arguments.w === width);
      is(bindings.map((one) => [one.destination_type, one.destination, one.arguments["x-match"]]).sort(), [["exchange", "lost", "any"], ["queue", "backlog", "all"]], "bindings");
      for (let count = 2; count > 0; count--) {
        await page.click(`tr:has-text('"w":${width}') button:text-is("Unbind")`);
        await page.waitForFunction(([text, least]) => [...document.querySelectorAll("tbody tr")].filter((one) => one.textContent.includes(text)).length < least, [`"w":${width}`, count]);
      }
    }),
    () => check(`${width}: both pages publish headers and properties, persistent unless told otherwise, and the browser shows the message at once`, async () => {
      await api(`/api/queues/%2F/typed${width}`, "PUT", { durable: true });
      const values = async (scope) => { for (const [label, value] of [["Body", "typed"], ["Headers (JSON)", '{"a": 1}'], ["Properties (JSON)", '{"priority": 3}']]) await page.fill(`${scope} label:has(span:text-is("${label}")) :is(input, textarea)`, value); };
      await go(page, `/queue/%2F/typed${width}`, `typed${width}`);
      await page.click('main button:text-is("Publish")');
      await values("dialog");
      must(await page.isChecked("dialog input[type=checkbox]"), "not persistent");
      await page.click("dialog form button:not([type=button])");
      await page.waitForSelector("article.message", { timeout: 3000 });
      await go(page, "/exchange/%2F/amq.default", "default");
      await page.fill('main label:has(span:text-is("Routing key")) input', `typed${width}`);
      await values("main");
      must(await page.isChecked("main form:has(textarea) input[type=checkbox]"), "not persistent");
      await page.click('main button:text-is("Publish")');
      await page.waitForSelector(".toast:has-text('a queue took it')");
      const { messages } = await api(`/api/v1/queues/%2F/typed${width}/peek?count=9`);
      is(messages.map((one) => [one.body, one.properties.headers.a, one.properties.priority, one.properties.delivery_mode]), [["typed", 1, 3, 2], ["typed", 1, 3, 2]], "messages");
      await go(page, `/queue/%2F/typed${width}`, `typed${width}`);
      for (const end of ["Cancel", "✕", "Remove"]) {
        await page.waitForSelector("article.message");
        if (!(await page.isChecked("article.message input[type=checkbox]"))) await page.click("article.message input[type=checkbox]");
        await page.click('main button:text-is("Remove 1 marked")');
        await page.click('dialog button:text-is("Copy")');
        await page.click(`dialog button:text-is("${end}")`);
        await page.waitForSelector("dialog", { state: "detached" });
      }
      await page.waitForFunction(() => document.querySelectorAll("article.message").length === 1);
      await page.click('main button:text-is("Purge")');
      await page.fill("dialog input", `typed${width}`);
      await page.click("dialog button.danger");
      await page.waitForFunction(() => document.querySelector(".message") === null, undefined, { timeout: 3000 });
      await page.click('main button:text-is("Delete")');
      await page.fill("dialog input", `typed${width}`);
      await page.click("dialog button.danger");
      await page.waitForFunction(() => document.querySelector("main h1")?.textContent === "Queues");
      must((await api(`/api/queues/%2F/typed${width}`)) === null, "the queue is still there");
    }),
    () => check(`${width}: connections are known by their client's name, sorted, and closed with a reason`, async () => {
      await go(page, "/connections", "Connections");
      await page.click('th button:has-text("Name")');
      await page.waitForSelector("th[aria-sort]");
      await page.waitForSelector(`tr:has-text("closing-${width}")`);
      must((await page.textContent(`tr:has-text("closing-${width}")`)).includes("Pika"), "no product of the client");
      await page.click(`tr:has-text("closing-${width}") a`);
      await page.waitForFunction((text) => document.querySelector("main h1")?.textContent.startsWith(text), `closing-${width}`);
      await page.click('main button:text-is("Close")');
      await page.fill('dialog label:has(span:text-is("Reason")) input', `reason-${width}`);
      await page.click("dialog button.danger");
      await page.waitForFunction(() => document.querySelector("main h1")?.textContent === "Connections");
      await page.waitForFunction((text) => ![...document.querySelectorAll("tbody tr")].some((one) => one.textContent.includes(text)), `closing-${width}`, { timeout: 8000 });
    }),
    () => check(`${width}: the offset of a group is reset`, async () => {
      const stream = `stream${width}`;
      await api(`/api/queues/%2F/${stream}`, "PUT", { durable: true, arguments: { "x-queue-type": "stream" } });
      for (const one of "abc") await api(`/api/v1/queues/%2F/${stream}/messages`, "POST", { body: one });
      await api(`/api/v1/queues/%2F/${stream}/messages/pull?group=g&offset=first&count=2&hold=5`, "POST");
      await api(`/api/v1/queues/%2F/${stream}/messages/pull?group=busy&offset=first&count=2&hold=5`, "POST");
      await go(page, "/streams", "Streams");
      const card = `section:has(a:text-is("${stream}"))`, reset = async (place) => { await page.click(`${card} tr:has-text("g") button:text-is("Reset offset")`); await page.selectOption(field("Place"), place); await page.click("dialog button.danger"); };
      await reset("first");
      await page.waitForSelector("dialog .trouble:has-text('members')");
      must(await page.$("dialog[open]"), "a group in use was moved");
      await page.keyboard.press("Escape");
    }),
    () => check(`${width}: the virtual host and the user go`, async () => {
      await part("vhosts");
      await drop(vhost, vhost);
      must((await api(`/api/vhosts/${vhost}`)) === null, "the virtual host is still there");
      await part("users");
      await drop(user, user);
      must((await api(`/api/users/${user}`)) === null, "the user is still there");
    }),
  ];
}
