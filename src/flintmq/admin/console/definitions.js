// Definitions: all names and rules of the broker, or of one virtual host, as a file of RabbitMQ's form; messages are not in it.
import { html, useContext, useState, App, Card, Badge, Table, Trouble, Confirm, Change, Command, Field, count } from "./ui.js";
import { get, post, path, save } from "./api.js";
import { curl, ctl } from "./commands.js";

export function Definitions() {
  const app = useContext(App), [whole, all] = useState(true), [failed, fail] = useState(null), [file, choose] = useState(null), [passed, say] = useState(null), [ask, setAsk] = useState(false);
  const url = whole ? "/api/definitions" : path`/api/definitions/${app.vhost}`, where = whole ? "the broker" : app.vhost;
  const out = async () => { try { save("definitions.json", JSON.stringify(await get(url), null, 1)); fail(null); app.toast("Exported"); } catch (error) { fail(error); } };
  const read = async (event) => {
    const chosen = event.target.files[0];
    choose(null); fail(null);
    if (!chosen) return;
    try {
      const value = JSON.parse(await chosen.text());
      if (!value || typeof value !== "object" || Array.isArray(value)) throw new Error("no object");
      choose({ name: chosen.name, value });
    } catch (error) { fail({ message: `${chosen.name} is no definitions file: ${error.message}`, fix: "Choose a file that RabbitMQ, LavinMQ or FlintMQ exported." }); }
  };
  const sections = file ? Object.entries(file.value).filter(([, value]) => Array.isArray(value)).map(([key, value]) => `${key}: ${count(value.length)}`) : [];
  const take = async () => { const answer = await post(url, file.value); say((answer && answer.passed_over) || []); fail(null); app.toast("Imported"); };
  return html`<${Card} title="Definitions"><p class="sub">Users, virtual hosts, permissions, policies, queues, exchanges and bindings, without messages. The file has hashes of passwords, and passwords in URIs of shovels and upstreams: keep it as you keep those.</p>
    <label class="check"><input type="checkbox" checked=${whole} onChange=${(event) => all(event.target.checked)} /><span>of all virtual hosts, with users</span></label>
    <div class="buttons"><${Change} onClick=${out}>Export<//></div><${Command}>${whole ? ctl("export_definitions") : curl("GET", url)}<//>
    <${Field} label=${`File to import into ${where}`} hint="It adds and replaces, and deletes nothing."><input type="file" accept=".json,application/json" onChange=${read} /><//>
    <${Trouble} error=${failed} />${file ? html`<p>${file.name}: ${sections.map((one) => html`<${Badge}>${one}<//>`)}</p>` : null}
    <div class="buttons"><button class="main" type="button" disabled=${app.locked || !file} onClick=${() => setAsk(true)}>Import</button></div>
    ${passed && passed.length ? html`<${Table} caption="Passed over" rows=${passed} columns=${[{ label: "Section", key: "section" }, { label: "Name", key: "name" }, { label: "Virtual host", key: "vhost" }, { label: "Why", key: "reason" }]} />` : null}<//>
  ${ask ? html`<${Confirm} title="Import definitions" action="Import" close=${() => setAsk(false)} commands=${whole ? [ctl("import_definitions")] : []} doIt=${take}>${file.name} adds to ${where}, and replaces users, permissions and policies of the same names: ${sections.join(", ") || "it has no lists"}.<//>` : null}`;
}
