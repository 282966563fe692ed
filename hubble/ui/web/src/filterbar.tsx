import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import type { Link } from "./edges";
import { filterNames, sided, type Filters } from "./filters";
import { readVertex, vertexName } from "./model";

const verdicts = ["", "FORWARDED", "DROPPED", "AUDIT", "TRANSLATED", "ERROR"];
const protocols = ["", "tcp", "udp", "sctp", "icmpv4", "icmpv6"];
const labels: Record<string, string> = {
  namespace: "Namespace",
  pod: "Pod",
  service: "Service",
  verdict: "Verdict",
  protocol: "Protocol",
  port: "Port",
  ip: "Address",
  label: "Label",
  "node-name": "Node",
  type: "Event",
  text: "Text",
  "from-pod": "From pod",
  "to-pod": "To pod",
  "from-service": "From Service",
  "to-service": "To Service",
  "from-label": "From label",
  "to-label": "To label",
  "from-ip": "From address",
  "to-ip": "To address",
};

// FilterBar changes filters when a field is left or Enter is pressed.
export function FilterBar({
  filters,
  setFilters,
  links,
  error,
}: {
  filters: Filters;
  setFilters(f: Filters): void;
  links: Link[];
  error: string;
}) {
  // what is being written, at once and not with the next drawing: a key may come before that
  const draft = useRef(filters);
  const applied = useRef(JSON.stringify(filters));
  const [, redraw] = useReducer((n: number, _: void) => n + 1, 0);
  useLayoutEffect(() => {
    // filters that came from elsewhere
    if (JSON.stringify(filters) === applied.current) return;
    applied.current = JSON.stringify(filters);
    draft.current = filters;
    redraw();
  }, [filters]);
  const apply = () => {
    const next = draft.current;
    const clean: Filters = {};
    for (const name of filterNames) {
      const value = next[name]?.trim();
      if (value) clean[name] = value;
    }
    if (JSON.stringify(clean) === applied.current) return;
    applied.current = JSON.stringify(clean);
    setFilters(clean);
  };
  const set = (name: string, value: string) => {
    draft.current = { ...draft.current, [name]: value };
    redraw();
  };
  const hints = hintsOf(links);
  const wrong = filterNames.find((n) => error.startsWith(`${n} `) || error.startsWith(`${n}:`));
  return (
    <form
      class="filters"
      role="search"
      aria-label="Filter flows"
      onSubmit={(e) => {
        e.preventDefault();
        apply();
      }}
    >
      {filterNames
        .filter((n) => filters[n] || !sided.includes(n))
        .map((name) => {
          const choice = name === "verdict" ? verdicts : name === "protocol" ? protocols : null;
          const value = draft.current[name] ?? "";
          const invalid = wrong === name;
          return (
            <label key={name} class={value ? "set" : ""}>
              <span>{labels[name]}</span>
              {choice ? (
                <select
                  value={value}
                  name={name}
                  aria-invalid={invalid}
                  onChange={(e) => {
                    set(name, e.currentTarget.value);
                    apply();
                  }}
                >
                  {(choice.includes(value) ? choice : [...choice, value]).map((c) => (
                    <option key={c} value={c}>
                      {c || "any"}
                    </option>
                  ))}
                </select>
              ) : (
                <input
                  name={name}
                  value={value}
                  autocomplete="off"
                  spellcheck={false}
                  aria-invalid={invalid}
                  list={hints[name] ? `hints-${name}` : undefined}
                  aria-describedby={invalid ? "filter-error" : undefined}
                  onInput={(e) => set(name, e.currentTarget.value)}
                  onBlur={apply}
                />
              )}
              {hints[name] && (
                <datalist id={`hints-${name}`}>
                  {hints[name].map((h) => (
                    <option key={h} value={h} />
                  ))}
                </datalist>
              )}
            </label>
          );
        })}
      <button type="submit">Filter</button>
      <button
        type="button"
        disabled={Object.keys(filters).length === 0}
        onClick={() => {
          draft.current = {};
          apply();
          redraw();
        }}
      >
        Clear
      </button>
      {error && (
        <p class="error" id="filter-error" role="alert">
          {error}
        </p>
      )}
    </form>
  );
}

const maxHints = 50;

function hintsOf(links: Link[]): Record<string, string[]> {
  const sets: Record<string, Set<string>> = { namespace: new Set(), pod: new Set(), service: new Set() };
  for (const l of links) {
    for (const id of [l.from, l.to]) {
      const v = readVertex(id);
      if (v.namespace) sets.namespace?.add(v.namespace);
      if (v.kind === "Service") sets.service?.add(vertexName(v));
      else if (v.kind !== "outside") sets.pod?.add(vertexName(v));
    }
  }
  const lists: Record<string, string[]> = {};
  for (const [name, set] of Object.entries(sets)) lists[name] = [...set].sort().slice(0, maxHints);
  return lists;
}
