// Why a message goes nowhere: each exchange on its way, which bindings match, and why the others do not.
import { html, useContext, useState, App, Head, Card, Badge, Table, Trouble, Command, Field, count, text } from "../ui.js";
import { path, post } from "../api.js";
import { curl } from "../commands.js";

function Route({ query }) {
  const app = useContext(App), [form, set] = useState({ exchange: query.get("exchange") || "", key: query.get("key") || "", headers: "{}" }), [found, show] = useState(null), [error, fail] = useState(null);
  let headers = null;
  try { headers = JSON.parse(form.headers || "{}"); } catch { headers = null; }
  const url = path`/api/v1/vhosts/${app.vhost}/route`, body = { exchange: form.exchange, routing_key: form.key, headers: headers || {} };
  const ask = async (event) => { event.preventDefault(); try { show(await post(url, body)); fail(null); } catch (error) { fail(error); show(null); } };
  return html`<${Head} title="Why unroutable?" sub="Nothing is published: the broker says where such a message would go." />
  <${Card}><form class="form" onSubmit=${ask}><${Field} label="Exchange" hint="Empty: the default exchange"><input value=${form.exchange} onInput=${(event) => set({ ...form, exchange: event.target.value })} /><//><${Field} label="Routing key"><input value=${form.key} onInput=${(event) => set({ ...form, key: event.target.value })} /><//>
    <${Field} label="Headers (JSON)"><input class="mono" value=${form.headers} onInput=${(event) => set({ ...form, headers: event.target.value })} /><//><button class="main" disabled=${!headers}>Test</button></form><${Trouble} error=${error || (headers ? null : { message: "The headers are no JSON." })} />${headers ? html`<${Command}>${curl("POST", url, body)}<//>` : null}<//>
  ${found ? html`<${Card} title=${found.routed ? `It goes to ${count(found.queue_count)} queue${found.queue_count === 1 ? "" : "s"}` : "It goes nowhere"} tools=${html`<${Badge} kind=${found.routed ? "good" : "bad"}>${found.routed ? "routed" : "unroutable"}<//>`}>
    <div role="status">${found.routed ? found.queues.slice(0, 50).map((one) => html`<${Badge} kind="good">${one}<//>`) : html`<p><b>${found.advice}</b></p>`}</div><//>
    ${found.steps.map((step) => html`<${Card} title=${`Exchange ${step.exchange || "(default)"}`} tools=${html`<span class="sub">${step.type ? `${step.type} · ` : ""}${step.reached}</span>`}>
      ${step.missing ? html`<${Trouble} error=${{ message: "It does not exist." }} />` : html`<${Table} caption="Bindings" rows=${step.bindings} empty="It has no bindings." columns=${[
        { label: "Matches", show: (row) => html`<span class=${row.matches ? "yes" : "no"} aria-label=${row.matches ? "matches" : "does not match"}>${row.matches ? "✓" : "✕"}</span>` }, { label: "To", show: (row) => html`<${Badge}>${row.destination_type}<//> ${row.destination}` }, { label: "Binding key", show: (row) => html`<code>${row.routing_key}</code>` },
        { label: "Arguments", show: (row) => (Object.keys(row.arguments || {}).length ? text(row.arguments) : "") }, { label: "Why", key: "reason" }]} />${step.left_out ? html`<p class="sub">${count(step.left_out)} more bindings are not explained.</p>` : null}`}<//>`)}` : null}`;
}

export const pages = { route: Route };
