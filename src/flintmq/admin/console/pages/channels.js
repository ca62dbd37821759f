// Channels of all connections.
import { html, useState, Head, Card, Table, Trouble, Pager, count, usePoll } from "../ui.js";
import { name } from "../api.js";
import { CHANNELS } from "./connections.js";

function Channels() {
  const [page, go] = useState(1), [filter, set] = useState("");
  const [found, error] = usePoll(`/api/channels?page=${page}&page_size=50&name=${name(filter)}`, 3000);
  return html`<${Head} title="Channels" sub=${found ? `${count(found.total_count)} channels` : ""}><input type="search" aria-label="Filter by name" placeholder="Filter by name ( / )" value=${filter} onInput=${(event) => { set(event.target.value); go(1); }} /><//><${Trouble} error=${error} />
  <${Card}><${Table} caption="Channels" rows=${found && found.items} columns=${CHANNELS} empty="No channel is open." />${found ? html`<${Pager} page=${found.page} pages=${found.page_count} total=${found.total_count} filtered=${found.filtered_count} go=${go} />` : null}<//>`;
}

export const pages = { channels: Channels };
