// The message browser: looks take nothing; move, edit and republish, remove.
import { html, useContext, useEffect, useState, App, Card, Badge, Empty, Trouble, Dialog, Confirm, Change, Command, Field, count, many, bytes, text } from "../ui.js";
import { get, post, path } from "../api.js";
import { curl } from "../commands.js";

const PLACES = [["body", "Body"], ["json", "JSON path"], ["header", "Header"], ["property", "Property"], ["routing_key", "Routing key"], ["exchange", "Exchange"]];
const OPS = [["contains", "contains"], ["eq", "is"], ["ne", "is not"], ["prefix", "begins with"], ["exists", "exists"], ["gt", "above"], ["lt", "below"]];

function condition(one) {
  const value = { in: one.in, op: one.op };
  if (one.in === "header" || one.in === "property") value.name = one.name;
  if (one.in === "json") value.path = one.name || "$";
  if (one.op !== "exists") value.value = one.op === "gt" || one.op === "lt" ? Number(one.value) : one.value;
  return value;
}

// round: another number lets the browser look anew: messages came or went by a button of the page.
export function Messages({ vhost, queue, stream, changed, round }) {
  const base = path`/api/v1/queues/${vhost}/${queue}`;
  const app = useContext(App);
  const [filters, setFilters] = useState([]), [state, set] = useState({ messages: [], next: "0", looked: 0 }), [error, fail] = useState(null), [busy, work] = useState(false), [marked, mark] = useState(new Set()), [ask, setAsk] = useState(null);
  const conditions = filters.map(condition);
  const look = async (from, before) => {
    work(true); fail(null);
    try {
      let found = null, place = from, looked = before.looked || 0;
      for (let tries = 0; tries < 20; tries++) { // a search looks at a part: it goes on until something is found, or all was seen
        found = conditions.length ? await post(`${base}/search`, { filter: conditions, position: place || "0", count: 20 }) : await get(`${base}/peek?count=20&position=${place || "0"}`);
        looked += found.looked;
        if (found.messages.length || found.next === null) break;
        place = found.next;
      }
      set({ messages: [...before.messages, ...found.messages], next: found.next, looked });
    } catch (error) { fail(error); }
    work(false);
  };
  const fresh = () => { mark(new Set()); look("0", { messages: [] }); changed(); };
  useEffect(fresh, [round]);
  const change = (at, value) => setFilters(filters.map((one, index) => (index === at ? { ...one, ...value } : one)));
  const toggle = (position) => { const next = new Set(marked); if (!next.delete(position)) next.add(position); mark(next); };
  const chosen = [...marked];
  return html`<${Card} title="Message browser" tools=${html`<span class="badge good">looks take nothing</span>`}>
    <form class="filters" onSubmit=${(event) => { event.preventDefault(); fresh(); }}>
    ${filters.map((one, at) => html`<div class="row" key=${at}><select aria-label="Where" value=${one.in} onChange=${(event) => change(at, { in: event.target.value })}>${PLACES.map(([key, label]) => html`<option value=${key}>${label}</option>`)}</select>
      ${["header", "property", "json"].includes(one.in) ? html`<input aria-label="Name or path" required placeholder=${one.in === "json" ? "$.order.lines[0].price" : "name"} value=${one.name} onInput=${(event) => change(at, { name: event.target.value })} />` : null}
      <select aria-label="How" value=${one.op} onChange=${(event) => change(at, { op: event.target.value })}>${OPS.map(([key, label]) => html`<option value=${key}>${label}</option>`)}</select>
      ${one.op === "exists" ? null : html`<input type="search" aria-label="Value" value=${one.value} onInput=${(event) => change(at, { value: event.target.value })} />`}
      <button type="button" class="small" aria-label="Remove this condition" onClick=${() => setFilters(filters.filter((_, index) => index !== at))}>✕</button></div>`)}
    <div class="row"><button type="button" onClick=${() => setFilters([...filters, { in: "body", op: "contains", name: "", value: "" }])}>Add a condition</button><button class="main" disabled=${busy}>${filters.length ? "Search" : "Look again"}</button>
      ${stream ? null : html`<${Change} onClick=${() => setAsk(["move"])}>${chosen.length ? `Move ${chosen.length} marked` : filters.length ? "Move all that match" : "Move all"}<//>
      ${chosen.length ? html`<${Change} kind="danger" onClick=${() => setAsk(["remove"])}>Remove ${chosen.length} marked<//>` : null}`}
      <span class="sub" role="status">${count(state.looked)} looked at</span></div></form>
    <${Trouble} error=${error} />
    <div aria-busy=${busy}>${state.messages.map((one) => html`<${Message} key=${one.position} one=${one} marked=${marked.has(one.position)} toggle=${stream ? null : () => toggle(one.position)} edit=${() => setAsk(["edit", one])} />`)}</div>
    ${state.messages.length ? null : html`<${Empty}>${busy ? "Looking …" : `No message ${filters.length ? "meets the conditions" : "can be had now"}. What is in consumers' hands is not shown.`}<//>`}
    ${state.next !== null && state.messages.length ? html`<div class="pager"><button disabled=${busy} onClick=${() => look(state.next, state)}>More</button></div>` : null}
    <${Command}>${filters.length ? curl("POST", `${base}/search`, { filter: conditions }) : curl("GET", `${base}/peek?count=20`)}<//>
  <//>
  ${ask && ask[0] === "move" ? html`<${Move} base=${base} chosen=${chosen} conditions=${conditions} close=${() => { setAsk(null); fresh(); }} />` : null}
  ${ask && ask[0] === "remove" ? html`<${Confirm} title="Remove messages" action="Remove" close=${() => setAsk(null)} commands=${[curl("POST", `${base}/remove`, { positions: chosen })]} doIt=${async () => { const found = await post(`${base}/remove`, { positions: chosen }); app.toast(many(found.removed, "message") + " removed"); fresh(); }}>${many(chosen.length, "message")} will end, for good.<//>` : null}
  ${ask && ask[0] === "edit" ? html`<${Edit} base=${base} queue=${queue} one=${ask[1]} stream=${stream} close=${(done) => { setAsk(null); if (done) fresh(); }} />` : null}`;
}

function pretty(one) {
  if (one.encoding !== "text" || one.truncated || one.body.length > 65536 || !/^\s*[{[]/.test(one.body)) return one.body;
  try { return JSON.stringify(JSON.parse(one.body), null, 2); } catch { return one.body; }
}

function Message({ one, marked, toggle, edit }) {
  const [open, show] = useState(true);
  const { headers, ...rest } = one.properties;
  const properties = [...Object.entries(rest), ...Object.entries(headers || {}).map(([key, value]) => ["header " + key, value])];
  return html`<article class="message" aria-label=${`Message ${one.position}`}><header>${toggle ? html`<input type="checkbox" aria-label=${`Mark message ${one.position}`} checked=${marked} onChange=${toggle} />` : null}
    <button type="button" class="plain num" aria-expanded=${open} onClick=${() => show(!open)}>#${one.offset !== undefined ? one.offset : one.position}</button><span class="mono">${one.exchange || "(default)"} → ${one.routing_key}</span>
    <${Badge}>${bytes(one.body_bytes)}<//>${one.encoding === "base64" ? html`<${Badge} kind="warn">binary, as base64<//>` : null}${one.truncated ? html`<${Badge} kind="warn">cut<//>` : null}${one.deliveries ? html`<${Badge} kind="warn">delivered ${one.deliveries}×<//>` : null}
    <span class="push"></span><${Change} kind="small" onClick=${edit}>Edit & republish<//></header>
    ${open ? html`<pre tabindex="0" role="group" aria-label="Body">${pretty(one)}</pre><div class="props">${properties.map(([key, value]) => html`<${Badge}>${key}: ${text(value)}<//>`)}</div>` : null}</article>`;
}

function Move({ base, chosen, conditions, close }) {
  const app = useContext(App);
  const [exchange, setExchange] = useState(""), [key, setKey] = useState(""), [error, fail] = useState(null), [busy, work] = useState(false), [done, say] = useState(0);
  const body = { exchange, ...(key || !exchange ? { routing_key: key } : {}), ...(chosen.length ? { positions: chosen } : { filter: conditions }) };
  const submit = async (event) => {
    event.preventDefault(); work(true);
    let moved = 0, place = "0";
    try {
      while (place !== null) {
        const found = await post(`${base}/move`, chosen.length ? body : { ...body, position: place });
        moved += found.moved; say(moved);
        if (found.stopped) throw new Error(`${many(moved, "message")} moved, then it stopped: ${found.stopped}`);
        place = found.next;
      }
      app.toast(many(moved, "message") + " moved"); close();
    } catch (error) { fail(error); work(false); }
  };
  return html`<${Dialog} title="Move messages" close=${close}><form onSubmit=${submit}><p>${chosen.length ? many(chosen.length, "marked message") : conditions.length ? "All messages that meet the conditions" : "All messages that are ready"} go to:</p>
    <div class="form"><${Field} label="Exchange" hint="Empty: straight to a queue"><input value=${exchange} onInput=${(event) => setExchange(event.target.value)} /><//><${Field} label=${exchange ? "Routing key" : "Queue"} hint=${exchange ? "Empty: each keeps its own" : ""}><input required=${!exchange} value=${key} onInput=${(event) => setKey(event.target.value)} /><//></div>
    <${Trouble} error=${error} />${busy ? html`<p role="status">${count(done)} moved …</p>` : null}<${Command}>${curl("POST", `${base}/move`, body)}<//>
    <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button class="main" disabled=${busy}>Move</button></div></form><//>`;
}

function Edit({ base, queue, one, stream, close }) {
  const app = useContext(App);
  const [form, set] = useState({ exchange: "", key: queue, body: one.body, properties: JSON.stringify(one.properties, null, 1), keep: stream }), [error, fail] = useState(null), [whole, setWhole] = useState(one.truncated ? null : one.body);
  useEffect(() => {
    if (whole === null) get(`${base}/peek?count=1&position=${one.position}&body_bytes=1048576`).then(({ messages: [got] }) => {
      if (got && got.position === one.position && !got.truncated) { set((before) => ({ ...before, body: got.body })); setWhole(got.body); }
    }, fail);
  }, []);
  let properties = null;
  try { properties = JSON.parse(form.properties); } catch { properties = null; }
  const body = { position: one.position, exchange: form.exchange, routing_key: form.key, remove: !form.keep };
  if (whole !== null && form.body !== whole) Object.assign(body, { body: form.body, encoding: one.encoding });
  if (properties && JSON.stringify(properties) !== JSON.stringify(one.properties)) body.properties = properties;
  const submit = async (event) => { event.preventDefault(); try { await post(`${base}/republish`, body); app.toast("Sent anew"); close(true); } catch (error) { fail(error); } };
  return html`<${Dialog} title=${`Edit and republish message ${one.position}`} close=${() => close(false)} wide><form onSubmit=${submit}>
    <div class="form"><${Field} label="Exchange" hint="Empty: straight to a queue"><input value=${form.exchange} onInput=${(event) => set({ ...form, exchange: event.target.value })} /><//><${Field} label=${form.exchange ? "Routing key" : "Queue"}><input value=${form.key} onInput=${(event) => set({ ...form, key: event.target.value })} /><//>
    <label class="check"><input type="checkbox" disabled=${stream} checked=${form.keep} onChange=${(event) => set({ ...form, keep: event.target.checked })} /><span>keep the original, too</span></label></div>
    <${Field} label=${one.encoding === "base64" ? "Body (base64)" : "Body"} hint=${whole !== null ? "" : "Too long to be edited here: it is sent as it is."}><textarea disabled=${whole === null} value=${form.body} onInput=${(event) => set({ ...form, body: event.target.value })}></textarea><//>
    <${Field} label="Properties (JSON)" hint="Unchanged properties are sent byte for byte."><textarea value=${form.properties} onInput=${(event) => set({ ...form, properties: event.target.value })}></textarea><//>
    <${Trouble} error=${error || (properties ? null : { message: "The properties are no JSON." })} /><${Command}>${curl("POST", `${base}/republish`, body)}<//>
    <div class="buttons"><button type="button" onClick=${() => close(false)}>Cancel</button><button class="main" disabled=${!properties}>Send</button></div></form><//>`;
}
