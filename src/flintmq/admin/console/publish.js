// The fields of a message that is published: the same on a queue's and on an exchange's page, persistent unless somebody says otherwise.
import { html, Field, parsed } from "./ui.js";

export const EMPTY = { key: "", body: "", headers: "{}", properties: "{}", persistent: true };

// What the fields say: headers and properties as objects; null: they are no JSON objects.
export function message(form) {
  const headers = parsed(form.headers), properties = parsed(form.properties);
  if (!headers || !properties) return null;
  const all = { ...(properties.headers || {}), ...headers };
  return { ...properties, ...(Object.keys(all).length ? { headers: all } : {}) };
}

export function MessageFields({ form, set, keyed }) {
  const on = (key) => (event) => set({ ...form, [key]: event.target.value });
  return html`${keyed ? html`<${Field} label="Routing key"><input value=${form.key} onInput=${on("key")} /><//>` : null}
    <${Field} label="Body"><textarea value=${form.body} onInput=${on("body")}></textarea><//>
    <div class="form"><${Field} label="Headers (JSON)" hint='Such as {"tenant": "a"}'><input class="mono" value=${form.headers} onInput=${on("headers")} /><//>
    <${Field} label="Properties (JSON)" hint='Such as {"content_type": "text/plain", "priority": 3}'><input class="mono" value=${form.properties} onInput=${on("properties")} /><//>
    <label class="check"><input type="checkbox" checked=${form.persistent} onChange=${(event) => set({ ...form, persistent: event.target.checked })} /><span>persistent</span></label></div>`;
}

export const WRONG = { message: "Headers or properties are no JSON object.", fix: 'Write an object, such as {"a": 1}.' };
