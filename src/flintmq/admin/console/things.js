// A list of an administrator's things, with a form for a new one, one for a change, and a way to delete each.
import { html, useContext, useState, App, Card, Table, Trouble, Confirm, Change, Command, Dialog, Field, usePoll } from "./ui.js";
import { put, create, remove } from "./api.js";
import { curl } from "./commands.js";

const input = (one, value, set, fixed) => one.options
  ? html`<select disabled=${fixed} value=${value} onChange=${(event) => set(event.target.value)}>${one.options.map((each) => html`<option>${each}</option>`)}</select>`
  : html`<input type=${one.type || "text"} required=${one.needed} disabled=${fixed} autocomplete=${one.type === "password" ? "new-password" : "off"} value=${value} onInput=${(event) => set(event.target.value)} />`;

// columns, caption, sub; fields: of the forms, fixed: can't be changed later, edit: their labels in that form; rowsOf: of the answer;
// make(form, row): {url, body, command} or {error}, row: what is changed; once: what is there already is not replaced by a new one;
// edited(row): values of the form for a change; gone(row): {url, word, text, command}.
export function Things({ url, caption, thing, columns, fields, make, gone, sub, once, edited, rowsOf }) {
  const app = useContext(App), [found, error, again] = usePoll(url, 5000), [ask, setAsk] = useState(null), [form, set] = useState(null), [old, setOld] = useState(null), [failed, fail] = useState(null);
  const open = (values, row) => { fail(null); setOld(row); set(values); };
  const submit = async (event) => { event.preventDefault(); try { await (once && !old ? create : put)(made.url, made.body); app.toast("Saved"); set(null); again(); } catch (error) { fail(error.status === 412 ? Object.assign(error, { message: `There is a ${thing} of this name already.`, fix: "Edit that one, or take another name." }) : error); } };
  const list = found && (Array.isArray(found) ? found : found.items || []), rows = list && (rowsOf ? rowsOf(list) : list), end = ask && gone(ask);
  const taken = form && once && !old && rows && rows.some((row) => row.name === form.name);
  const made = !form ? null : taken ? { error: { message: `There is a ${thing} of this name already.`, fix: "Edit that one, or take another name." } } : make(form, old);
  return html`<${Card} title=${caption} tools=${html`<${Change} kind="main" onClick=${() => open(Object.fromEntries(fields.map((one) => [one.key, one.value || ""])), null)}>New ${thing}<//>`}>${sub ? html`<p class="sub">${sub}</p>` : null}<${Trouble} error=${error} />
    <${Table} caption=${caption} rows=${rows} columns=${[...columns, { label: "Action", show: (row) => html`${edited ? html`<${Change} kind="small" onClick=${() => open(edited(row), row)}>Edit<//> ` : null}<${Change} kind="small danger" onClick=${() => setAsk(row)}>Delete<//>` }]} /><//>
  ${form ? html`<${Dialog} title=${`${old ? "Edit" : "New"} ${thing}`} close=${() => set(null)}><form class="form" onSubmit=${submit}>${fields.map((one) => html`<${Field} label=${one.label} hint=${old && one.later ? one.later : one.hint}>${input(old && one.later ? { ...one, needed: false } : one, form[one.key], (value) => set({ ...form, [one.key]: value }), !!old && one.fixed)}<//>`)}
    <div class="all"><${Trouble} error=${failed || made.error} />${made.error ? null : html`<${Command}>${made.command || curl("PUT", made.url, made.body)}<//>`}<div class="buttons"><button type="button" onClick=${() => set(null)}>Cancel</button><button class="main" disabled=${!!made.error}>Save</button></div></div></form><//>` : null}
  ${end ? html`<${Confirm} title=${`Delete the ${thing}`} word=${end.word} action="Delete" close=${() => setAsk(null)} commands=${[curl("DELETE", end.url), end.command].filter(Boolean)} doIt=${async () => { await remove(end.url); app.toast("Deleted"); again(); }}>${end.text}<//>` : null}`;
}
