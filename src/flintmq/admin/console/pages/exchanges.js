// Exchanges, and one with its bindings and a way to publish.
import { html, useContext, useState, App, Head, Card, Badge, Link, Table, Trouble, Confirm, Change, Command, Dialog, Field, Facts, Pager, many, parsed, text, usePoll, useList, usePage } from "../ui.js";
import { name, path, post, put, remove } from "../api.js";
import { curl } from "../commands.js";
import { EMPTY, MessageFields, WRONG, message } from "../publish.js";

function Exchanges() {
  const app = useContext(App), [fresh, declare] = useState(false);
  const list = useList(`/api/exchanges/${name(app.vhost)}`), [found, error, again] = usePage(list, 5000);
  return html`<${Head} title="Exchanges" sub=${found ? `${many(found.total_count, "exchange")} in ${app.vhost}` : ""}>${list.filter}<${Change} kind="main" onClick=${() => declare(true)}>New exchange<//><//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Exchanges" rows=${found && found.items} sort=${list.sort} onSort=${list.onSort} columns=${[
    { label: "Name", sort: "name", show: (row) => html`<${Link} to=${`/exchange/${name(row.vhost)}/${name(row.name || "amq.default")}`}>${row.name || "(default)"}<//>` }, { label: "Type", sort: "type", show: (row) => html`<${Badge}>${row.type}<//>` },
    { label: "Features", show: (row) => html`${row.durable ? html`<${Badge}>durable<//>` : null}${row.internal ? html`<${Badge} kind="warn">internal<//>` : null}${row.auto_delete ? html`<${Badge}>auto-delete<//>` : null}${row.policy ? html`<${Badge} kind="good">${row.policy}<//>` : null}` },
    { label: "Arguments", show: (row) => (Object.keys(row.arguments).length ? text(row.arguments) : "") }]} />${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${list.go} />` : null}<//>
  ${fresh ? html`<${Declare} close=${() => { declare(false); again(); }} />` : null}`;
}

function Declare({ close }) {
  const app = useContext(App), [form, set] = useState({ name: "", type: "topic", alternate: "" }), [error, fail] = useState(null);
  const body = { type: form.type, durable: true, arguments: form.alternate ? { "alternate-exchange": form.alternate } : {} }, url = path`/api/exchanges/${app.vhost}/${form.name}`;
  const submit = async (event) => { event.preventDefault(); try { await put(url, body); app.toast(`Exchange ${form.name} is declared`); close(); } catch (error) { fail(error); } };
  return html`<${Dialog} title="New exchange" close=${close}><form class="form" onSubmit=${submit}><${Field} label="Name"><input required value=${form.name} onInput=${(event) => set({ ...form, name: event.target.value })} /><//>
    <${Field} label="Type"><select value=${form.type} onChange=${(event) => set({ ...form, type: event.target.value })}>${["topic", "direct", "fanout", "headers"].map((one) => html`<option>${one}</option>`)}</select><//><${Field} label="Alternate exchange" hint="Takes what matches nothing"><input value=${form.alternate} onInput=${(event) => set({ ...form, alternate: event.target.value })} /><//>
    <div class="all"><${Trouble} error=${error} /><${Command}>${curl("PUT", url, body)}<//><div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main">Declare</button></div></div></form><//>`;
}

const argumentsOf = (row) => (Object.keys(row.arguments).length ? text(row.arguments) : "");

// Bindings from an exchange, to queues and to other exchanges.
function Bindings({ vhost, exchange, internal }) {
  const app = useContext(App), [form, set] = useState({ kind: "q", to: "", key: "", arguments: "{}" }), [failed, fail] = useState(null);
  const [found, error, again] = usePoll(path`/api/exchanges/${vhost}/${exchange}/bindings/source`, 5000);
  const given = parsed(form.arguments), body = { routing_key: form.key, arguments: given || {} }, on = (key) => (event) => set({ ...form, [key]: event.target.value });
  const ends = (kind, to) => path`/api/bindings/${vhost}/e/${exchange}/${kind}/${to}`;
  const add = async (event) => { event.preventDefault(); try { await post(ends(form.kind, form.to), body); app.toast("Bound"); fail(null); again(); } catch (error) { fail(error); } };
  const drop = async (row) => { try { await remove(ends(row.destination_type === "queue" ? "q" : "e", row.destination) + path`/${row.properties_key}`); fail(null); app.toast("Unbound"); again(); } catch (error) { fail(error); } };
  const fixed = exchange === "amq.default";
  return html`<${Card} title="Bindings from here"><${Trouble} error=${error || failed} /><${Table} caption="Bindings" rows=${found && found.slice(0, 500)} empty="Nothing is bound: what is published here goes nowhere." columns=${[
    { label: "To", show: (row) => html`<${Badge}>${row.destination_type}<//> <${Link} to=${`/${row.destination_type}/${name(vhost)}/${name(row.destination)}`}>${row.destination}<//>` }, { label: "Routing key", key: "routing_key" }, { label: "Arguments", show: argumentsOf },
    { label: "Action", show: (row) => (fixed ? "" : html`<${Change} kind="small" onClick=${() => drop(row)}>Unbind<//>`) }]} />
    ${fixed ? html`<p class="sub">Each queue is bound here by its name, and nothing else can be.</p>` : html`<form class="form" onSubmit=${add}><${Field} label="To"><select value=${form.kind} onChange=${on("kind")}><option value="q">queue</option><option value="e">exchange</option></select><//><${Field} label=${form.kind === "q" ? "Queue" : "Exchange"}><input required value=${form.to} onInput=${on("to")} /><//>
      <${Field} label="Binding key"><input value=${form.key} onInput=${on("key")} /><//><${Field} label="Arguments (JSON)" hint=${internal ? "" : 'For a headers exchange: {"x-match": "all", "a": 1}'}><input class="mono" value=${form.arguments} onInput=${on("arguments")} /><//><button class="main" disabled=${app.locked || !given}>Bind</button></form>
    ${form.to ? html`<${Command}>${curl("POST", ends(form.kind, form.to), body)}<//>` : null}`}<//>`;
}

function Publish({ url }) {
  const app = useContext(App), [form, set] = useState(EMPTY), [failed, fail] = useState(null);
  const properties = message(form), value = properties && { properties: { delivery_mode: form.persistent ? 2 : 1, ...properties }, routing_key: form.key, payload: form.body, payload_encoding: "string" };
  const send = async (event) => { event.preventDefault(); try { const got = await post(url + "/publish", value); fail(null); app.toast(got.routed ? "Published, and a queue took it" : "Published, and it went nowhere"); } catch (error) { fail(error); } };
  return html`<${Card} title="Publish a message"><form onSubmit=${send}><${MessageFields} form=${form} set=${set} keyed />
    <${Trouble} error=${failed || (value ? null : WRONG)} />${value ? html`<${Command}>${curl("POST", url + "/publish", value)}<//>` : null}<div class="buttons"><button class="main" disabled=${app.locked || !value}>Publish</button></div></form><//>`;
}

function Exchange({ names: [vhost, exchange] }) {
  const [ask, setAsk] = useState(false), url = path`/api/exchanges/${vhost}/${exchange}`;
  const [found, error] = usePoll(url, 5000);
  return html`<${Head} title=${exchange === "amq.default" ? "(default)" : exchange} sub=${`exchange in ${vhost}`}><${Link} class="button" to=${`/route?exchange=${name(exchange === "amq.default" ? "" : exchange)}`}>Test a route<//>${exchange.startsWith("amq.") ? null : html`<${Change} kind="danger" onClick=${() => setAsk(true)}>Delete<//>`}<//><${Trouble} error=${error} />
  ${found ? html`<${Card}><${Facts} rows=${[["Type", found.type], ["Durable", found.durable ? "yes" : "no"], ["Internal", found.internal ? "yes" : "no"], ["Policy", found.policy || "none"], ["Arguments", html`<code>${text(found.arguments)}</code>`]]} /><//>` : null}
  <${Bindings} vhost=${vhost} exchange=${exchange} internal=${!found || found.type !== "headers"} /><${Publish} url=${url} />
  ${ask ? html`<${Confirm} title="Delete the exchange" word=${exchange} action="Delete" close=${() => setAsk(false)} commands=${[curl("DELETE", url)]} doIt=${async () => { await remove(url); location.hash = "/exchanges"; }}>Its bindings go with it. Publishers that name it are refused.<//>` : null}`;
}

export const pages = { exchanges: Exchanges, exchange: Exchange };
