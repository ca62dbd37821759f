// Exchanges, and one with its bindings and a way to publish.
import { html, useContext, useState, App, Head, Card, Badge, Link, Table, Trouble, Confirm, Change, Command, Dialog, Field, Facts, Pager, count, text, usePoll } from "../ui.js";
import { name, path, curl, post, put, remove } from "../api.js";

function Exchanges() {
  const app = useContext(App), [page, go] = useState(1), [filter, set] = useState(""), [fresh, declare] = useState(false);
  const [found, error, again] = usePoll(`/api/exchanges/${name(app.vhost)}?page=${page}&page_size=50&name=${name(filter)}`, 5000);
  return html`<${Head} title="Exchanges" sub=${found ? `${count(found.total_count)} in ${app.vhost}` : ""}><input type="search" aria-label="Filter by name" placeholder="Filter by name ( / )" value=${filter} onInput=${(event) => { set(event.target.value); go(1); }} /><${Change} kind="main" onClick=${() => declare(true)}>New exchange<//><//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Exchanges" rows=${found && found.items} columns=${[
    { label: "Name", show: (row) => html`<${Link} to=${`/exchange/${name(row.vhost)}/${name(row.name || "amq.default")}`}>${row.name || "(default)"}<//>` }, { label: "Type", show: (row) => html`<${Badge}>${row.type}<//>` },
    { label: "Features", show: (row) => html`${row.durable ? html`<${Badge}>durable<//>` : null}${row.internal ? html`<${Badge} kind="warn">internal<//>` : null}${row.auto_delete ? html`<${Badge}>auto-delete<//>` : null}${row.policy ? html`<${Badge} kind="good">${row.policy}<//>` : null}` },
    { label: "Arguments", show: (row) => (Object.keys(row.arguments).length ? text(row.arguments) : "") }]} />${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${go} />` : null}<//>
  ${fresh ? html`<${Declare} close=${() => { declare(false); again(); }} />` : null}`;
}

function Declare({ close }) {
  const app = useContext(App), [form, set] = useState({ name: "", type: "topic", alternate: "" }), [error, fail] = useState(null);
  const body = { type: form.type, durable: true, arguments: form.alternate ? { "alternate-exchange": form.alternate } : {} }, url = path`/api/exchanges/${app.vhost}/${form.name}`;
  const submit = async (event) => { event.preventDefault(); try { await put(url, body); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title="New exchange" close=${close}><form class="form" onSubmit=${submit}><${Field} label="Name"><input required value=${form.name} onInput=${(event) => set({ ...form, name: event.target.value })} /><//>
    <${Field} label="Type"><select value=${form.type} onChange=${(event) => set({ ...form, type: event.target.value })}>${["topic", "direct", "fanout", "headers"].map((one) => html`<option>${one}</option>`)}</select><//><${Field} label="Alternate exchange" hint="Takes what matches nothing"><input value=${form.alternate} onInput=${(event) => set({ ...form, alternate: event.target.value })} /><//>
    <div class="all"><${Trouble} error=${error} /><${Command}>${curl("PUT", url, body)}<//><div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main">Declare</button></div></div></form><//>`;
}

function Exchange({ names: [vhost, exchange] }) {
  const app = useContext(App), [ask, setAsk] = useState(false), [form, set] = useState({ key: "", body: "" }), [failed, fail] = useState(null);
  const url = path`/api/exchanges/${vhost}/${exchange}`;
  const [found, error] = usePoll(url, 5000), [bindings] = usePoll(url + "/bindings/source", 5000);
  const message = { properties: {}, routing_key: form.key, payload: form.body, payload_encoding: "string" };
  const send = async (event) => { event.preventDefault(); try { const got = await post(url + "/publish", message); fail(null); app.toast(got.routed ? "Published, and a queue took it" : "Published, and it went nowhere"); } catch (error) { fail(error); } };
  return html`<${Head} title=${exchange === "amq.default" ? "(default)" : exchange} sub=${`exchange in ${vhost}`}><${Link} class="button" to=${`/route?exchange=${name(exchange === "amq.default" ? "" : exchange)}`}>Test a route<//><${Change} kind="danger" onClick=${() => setAsk(true)}>Delete<//><//><${Trouble} error=${error} />
  ${found ? html`<${Card}><${Facts} rows=${[["Type", found.type], ["Durable", found.durable ? "yes" : "no"], ["Internal", found.internal ? "yes" : "no"], ["Policy", found.policy || "none"], ["Arguments", html`<code>${text(found.arguments)}</code>`]]} /><//>` : null}
  <${Card} title="Bindings from here"><${Table} caption="Bindings" rows=${bindings && bindings.slice(0, 500)} empty="Nothing is bound: what is published here goes nowhere." columns=${[
    { label: "To", show: (row) => html`<${Badge}>${row.destination_type}<//> <${Link} to=${`/${row.destination_type}/${name(vhost)}/${name(row.destination)}`}>${row.destination}<//>` }, { label: "Routing key", key: "routing_key" }, { label: "Arguments", show: (row) => (Object.keys(row.arguments).length ? text(row.arguments) : "") }]} /><//>
  <${Card} title="Publish a message"><form onSubmit=${send}><${Field} label="Routing key"><input value=${form.key} onInput=${(event) => set({ ...form, key: event.target.value })} /><//><${Field} label="Body"><textarea value=${form.body} onInput=${(event) => set({ ...form, body: event.target.value })}></textarea><//><${Trouble} error=${failed} /><${Command}>${curl("POST", url + "/publish", message)}<//><div class="buttons"><button class="main" disabled=${app.locked}>Publish</button></div></form><//>
  ${ask ? html`<${Confirm} title="Delete the exchange" word=${exchange} action="Delete" close=${() => setAsk(false)} commands=${[curl("DELETE", url)]} doIt=${async () => { await remove(url); location.hash = "/exchanges"; }}>Its bindings go with it. Publishers that name it are refused.<//>` : null}`;
}

export const pages = { exchanges: Exchanges, exchange: Exchange };
