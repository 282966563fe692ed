import type { Link } from "./edges";
import { ports } from "./edges";
import { perSecond, readVertex, vertexName } from "./model";

const maxShown = 300;

// Connections is the map as a table.
export function Connections({ links, onLink }: { links: Link[]; onLink(id: string): void }) {
  const sorted = [...links].sort(
    (a, b) => Number(b.red) - Number(a.red) || b.rate - a.rate || (a.id < b.id ? -1 : 1),
  );
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Connections">
      <table class="list">
        <caption>What the map shows, connections with drops first</caption>
        <thead>
          <tr>
            <th scope="col">From</th>
            <th scope="col">To</th>
            <th scope="col">Ports</th>
            <th scope="col" class="number">
              Flows/s
            </th>
            <th scope="col" class="number">
              Flows
            </th>
            <th scope="col" class="number">
              Dropped
            </th>
            <th scope="col">Rule of the last drop</th>
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, maxShown).map((l) => (
            <tr key={l.id} class={l.red ? "denied" : ""} data-link={l.id}>
              <th scope="row">
                <button type="button" class="link" onClick={() => onLink(l.id)}>
                  {vertexName(readVertex(l.from))}
                </button>
              </th>
              <td>{vertexName(readVertex(l.to))}</td>
              <td>{ports(l)}</td>
              <td class="number">{perSecond(l.rate)}</td>
              <td class="number">{l.flows.toLocaleString("en")}</td>
              <td class="number">{l.dropped ? `✕ ${l.dropped.toLocaleString("en")}` : "0"}</td>
              <td>{l.rule}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > maxShown && <p class="note">{sorted.length - maxShown} more: filter to see them.</p>}
    </div>
  );
}
